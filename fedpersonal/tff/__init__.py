"""All uses of TensorFlow Federated (TFF): no other package imports it.

`language` has the names of the federated language. `graphs`, `normal_form` and `optimizers` replace
further parts of TFF. `stock` has the parts that exist only in TFF.
"""

from fedpersonal.tff.graphs import pack_container, spec_of, tf_computation
from fedpersonal.tff.language import *  # noqa: F403
from fedpersonal.tff.normal_form import to_call_dominant

__all__ = ["pack_container", "spec_of", "tf_computation", "to_call_dominant"]
