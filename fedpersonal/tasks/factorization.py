"""What tasks on users and items share: the data, and the matrix factorization of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from fedpersonal.algorithms.method import Layers
from fedpersonal.data.ratings.ratings import Ratings
from fedpersonal.options import Options, option
from fedpersonal.tasks.task import Data

if TYPE_CHECKING:
    from fedpersonal.model.losses import Loss
    from fedpersonal.model.metrics import Metric
    from fedpersonal.model.partition import PartitionedModel

_USER = ("user_embedding", "user_bias")
LAYERS = Layers(embedding=_USER, head=_USER, table=_USER)


@dataclasses.dataclass(frozen=True, eq=False)
class ItemData(Data):
    """Users and items, split for one experiment.

    Attributes:
        source: All that was split.
    """

    source: Ratings

    @property
    def num_users(self) -> int:
        """Rows of a table of user embeddings."""
        return len(self.source.user_ids)

    @property
    def num_items(self) -> int:
        """Rows of the item table."""
        return len(self.source.item_ids)


class FactorizationOptions(Options):
    """What the embeddings are like."""

    embedding_dim: int = option(50, "Size of an embedding, K.", at_least=1, at_most=10_000)
    embedding_stddev: float = option(0.1, "Deviation of initial embeddings.", at_least=0)
    use_biases: bool = option(False, "Add a local user bias and a global item bias.")
    l2: float = option(0.0, "Penalty of the embeddings in use.", at_least=0)


def factorization(
    sizes: SimpleNamespace,
    options: FactorizationOptions,
    local_layers: Sequence[str],
    *,
    loss: Loss | None,
    metrics: Sequence[Metric],
    mean_rating: float = 0.0,
    scale: float = 1.0,
    rated_places: int = 0,
) -> PartitionedModel:
    """Returns one user's model where layers are local, else one with a table of all users.

    Args:
        sizes: `num_users` and `num_items`.
        options: The options.
        local_layers: What the method wants to be local; biases count where there are any.
        loss: As of `PartitionedModel`.
        metrics: Alike.
        mean_rating: As of `matrix_factorization`.
        scale: Alike.
        rated_places: Alike.
    """
    import tensorflow as tf

    from fedpersonal.model.partition import PartitionedModel
    from fedpersonal.models.matrix_factorization import matrix_factorization

    tables = {"item_embedding": "item", "item_bias": "item"}
    if not local_layers:
        tables.update(user_embedding="user", user_bias="user")
    kinds = ("embedding", "bias") if options.use_biases else ("embedding",)
    tables = {name: feature for name, feature in tables.items() if name.endswith(kinds)}
    if rated_places:
        tables["rated_embedding"] = "rated"
    return PartitionedModel(
        matrix_factorization(
            num_items=sizes.num_items,
            num_users=None if local_layers else sizes.num_users,
            embedding_dim=options.embedding_dim,
            use_biases=options.use_biases,
            rated_places=rated_places,
            mean_rating=mean_rating,
            scale=scale,
            embedding_initializer=tf.keras.initializers.RandomNormal(
                stddev=options.embedding_stddev
            ),
            l2=options.l2,
        ),
        local_layers=[
            name for name in local_layers if options.use_biases or not name.endswith("_bias")
        ],
        loss=loss,
        metrics=metrics,
        lookups=tables,
        owned_tables=[name for name, feature in tables.items() if feature == "user"],
    )
