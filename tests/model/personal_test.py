"""Personal copies of variables: what is copied, and how a model is applied with them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.examples import check_per_client_rows
from fedpersonal.model.names import COPY, MIXING
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.personal import PersonalModel
from fedpersonal.suite.models.factorization import matrix_factorization

ITEM, USER = "item_embedding/embeddings", "user_embedding/embeddings"


def base(**options):
    build = matrix_factorization(num_items=4, num_users=3, embedding_dim=2)
    lookups = {"item_embedding": "item", "user_embedding": "user"}
    return PartitionedModel(build, lookups=lookups, **options)


def names(variables):
    return [v.name for v in variables]


def test_copies_are_local_variables_and_of_owned_tables_a_row():
    model = PersonalModel(base(per_client_tables=["user_embedding"]), mixing=0.25)
    assert set(names(model.global_variables)) == {ITEM, USER}
    shapes = {v.name: v.shape for v in model.local_variables}
    assert shapes == {f"{COPY}/{ITEM}": (4, 2), f"{COPY}/{USER}": (1, 2), MIXING: ()}
    assert model.tables == {
        ITEM: "item",
        USER: "user",
        **{f"{COPY}/{name}": feature for name, feature in ((ITEM, "item"), (USER, "user"))},
    }
    assert set(model.global_tables) == {ITEM, USER} and model.server_rows_per_client == {USER}
    assert names(model.initialized_locals) == [MIXING]
    assert model.initial_local_values() == {MIXING: np.float32(0.25)}
    assert model.base.copies == {} and model.base.personal is model.base


def test_a_client_has_one_row_of_its_own(draw_ratings, make_dataset):
    model = PersonalModel(base(per_client_tables=["user_embedding"]))
    check_per_client_rows(model, draw_ratings([3, 0, 2], num_items=4))
    ids = {"user": np.array([1, 2], np.int32), "item": np.array([1, 2], np.int32)}
    with pytest.raises(UserError, match="some client has several ids in its input 'user'"):
        check_per_client_rows(model, make_dataset([(ids, np.ones(2, np.float32))]))


def test_some_layers_are_copied_and_variables_that_are_replaced_are_sent_with_all_rows():
    assert PersonalModel(base(), ["user_embedding"]).copies == {f"{COPY}/{USER}": USER}
    model = PersonalModel(base(per_client_tables=["user_embedding"]), replaces=True)
    assert model.tables == {USER: "user", ITEM: "item", f"{COPY}/{ITEM}": "item"}
    assert model.global_tables == {USER: "user"}
    assert [v.name for v in model.global_variables if v.is_replaced] == [ITEM]


@pytest.mark.parametrize("mixing", [None, 0.25])
def test_the_model_is_applied_with_the_shared_variables_or_with_copies(mixing):
    model = PersonalModel(base(), mixing=mixing)
    random = np.random.default_rng(0)
    values = {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.variables}
    values[MIXING] = np.float32(0.25)
    share = 1.0 if mixing is None else mixing
    rows = {"user": np.array([2, 0], np.int32), "item": np.array([1, 3], np.int32)}

    @tf.function(autograph=False)
    def predictions():
        ours = (one.predict(values, rows, training=False)[0] for one in (model, model.personal))
        return tuple(ours)

    def expected(weight):
        items, users = (
            weight * values[f"{COPY}/{name}"] + (1 - weight) * values[name] for name in (ITEM, USER)
        )
        return (users[rows["user"]] * items[rows["item"]]).sum(-1)

    for found, weight in zip(predictions(), (0.0, share)):
        np.testing.assert_allclose(np.squeeze(found), expected(weight), rtol=1e-5)


def test_mistakes_are_named():
    with pytest.raises(UserError, match="personal copies: 'itm_embedding' names no variable"):
        PersonalModel(base(), ["itm_embedding"])
    everything = base(local_layers=["item_embedding", "user_embedding"])
    with pytest.raises(UserError, match="no global variable that a client could copy"):
        PersonalModel(everything)
