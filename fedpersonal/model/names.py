"""The names of what a client has beside a model's own variables."""

# A layer's personal copy is `personal_copy/<layer>`, a variable's `personal_copy/<variable>`.
COPY = "personal_copy"
# What the server has beside a variable, and sends: `server_state/<variable>`.
SERVER_STATE = "server_state"
# How far a copy goes towards what the server sent, weight by weight: `blend/<variable>`.
BLEND = "blend"
# What a client remembers of its examples: `memory/<part>`.
MEMORY = "memory"
# As how much the copies count where they are mixed with the global variables.
MIXING = "personal_mixing"
# Which of several models a client has chosen, 1 for that one and 0 for others, or their weights.
CLUSTER = "personal_cluster"
# The share of a round's clients, by weight, that have chosen each: the server's, and sent.
CLUSTER_SHARES = "cluster_shares"
