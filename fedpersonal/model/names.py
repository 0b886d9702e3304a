"""Names of variables that clients and the server have in addition to the Keras model's."""

# A layer's personal copy is `personal_copy/<layer>`, a variable's `personal_copy/<variable>`.
COPY = "personal_copy"
# A state that the server has for a variable, and sends: `server_state/<variable>`.
SERVER_STATE = "server_state"
# How far a copy moves towards the value that the server sent, per weight: `blend/<variable>`.
BLEND = "blend"
# A client's memory of its examples: `memory/<part>`.
MEMORY = "memory"
# The weight of copies where they are mixed with the global variables.
MIXING = "personal_mixing"
# A client's choice among several models, 1 for the chosen one and 0 for others, or their weights.
CLUSTER = "personal_cluster"
# The share of a round's clients, by weight, that have chosen each model; the server sends it.
CLUSTER_SHARES = "cluster_shares"
