"""What the library takes from TensorFlow Federated (TFF): its language, by name.

`language` has the names, `graphs`, `normal_form` and `optimizers` what the language leaves to
others, and `stock` what only TFF itself has.
"""

from fedpersonal.tff.graphs import contained, spec_of, tf_computation
from fedpersonal.tff.language import *  # noqa: F403
from fedpersonal.tff.normal_form import to_call_dominant

__all__ = ["contained", "spec_of", "tf_computation", "to_call_dominant"]
