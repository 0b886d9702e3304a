"""One client's round of federated averaging is Keras' own `fit`, or the model is refused.

The table is in `keras_parity_losses` and `keras_parity_layers`.
"""

from __future__ import annotations

import pytest

from tests.model import keras_parity_layers, keras_parity_losses
from tests.model.keras_parity import check

CASES = [*keras_parity_losses.CASES, *keras_parity_layers.CASES]

pytestmark = pytest.mark.usefixtures("not_compiled")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_round_equals_fit_or_model_is_refused(case):
    check(case)


def test_names_are_distinct():
    assert len({case.name for case in CASES}) == len(CASES)
