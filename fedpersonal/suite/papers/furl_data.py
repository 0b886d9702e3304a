"""Published figures and hyperparameters of FURL (Bui et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping

from fedpersonal.options import Value

# The paper's name of a method, its accuracy on Reddit and its AUC on Sticker, in per cent.
PUBLISHED: Mapping[str, tuple[str, float, float]] = {
    "centralized": ("Global Server", 28.93, 57.75),
    "centralized_personalized": ("Personalized Server", 66.13, 65.60),
    "fed_avg": ("Global FL", 11.90, 57.24),
    "furl": ("Personalized FL", 62.41, 65.63),
}
RIVALS = ("local_only", "fed_avg_finetuning")
# Options that replace the preset's, by method and kind. Local training starts from initial weights,
# so it needs more steps than fine-tuning.
METHOD_OPTIONS: Mapping[str, Mapping[str, Mapping[str, Value]]] = {
    "local_only": {
        "reddit": {"finetuning_learning_rate": 3.0, "standalone_epochs": 20},
        "films": {"finetuning_learning_rate": 1.0, "standalone_epochs": 10},
    },
    "fed_avg": {"films": {"client_learning_rate": 0.3}},
    "fed_avg_finetuning": {"films": {"client_learning_rate": 0.3}},
    "per_fed_avg": {
        "films": {
            "client_learning_rate": 0.3,
            "support_query_split": "shared",
            "adaptation_learning_rate": 0.1,
            "adaptation_steps": 10,
        }
    },
}
