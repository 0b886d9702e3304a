"""Which way metrics get better."""

import pytest

from fedpersonal.evaluation.client_metrics import lower_is_better, main_metric


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("rmse", True),
        ("eval/unseen/loss", True),
        ("perplexity_after", True),
        ("mae", True),
        ("accuracy_without_oov_or_eos", False),
        ("train/auc", False),
        ("hr@10_all", False),
        ("ndcg@10", False),
        ("eval/auc_loss", True),
        ("loss_of_accuracy", True),
        ("accuracy_error_after", True),
        ("false_positives", True),
        ("mean_io_u", False),
        ("wobble", None),
        ("lossless", None),
    ],
)
def test_lower_is_better(name, lower):
    assert lower_is_better(name) is lower


def test_the_main_metric_is_the_plainest_of_the_most_telling():
    assert main_metric(["loss", "accuracy_without_oov", "accuracy"]) == "accuracy"
    assert main_metric(["mae", "loss", "rmse"]) == "rmse"
    assert main_metric(["wobble", "hr@10"]) == "hr@10"
    assert main_metric(["auc_loss", "accuracy"]) == "accuracy"
    assert main_metric(["wobble"]) is None
    assert main_metric([]) is None
