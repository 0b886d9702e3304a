"""Rows, published figures and captions of FedPerC (Silva et al., EACL Findings 2023)."""

from __future__ import annotations

import csv
import functools
import pathlib

from fedpersonal.options import Value
from fedpersonal.suite.papers.reproduction import Row
from fedpersonal.suite.papers.table import DIFFERENCES
from fedpersonal.suite.tasks.utterances.methods import FEDERATED, METHODS

FEDPERC, _RIVALS = "tv_shows_{}", "tv_shows_{}_rivals"

# Tables 1, 2 and 3.
IN_TABLES = {method.name: method for method in FEDERATED if not method.parts}
BASE, OURS = "base_model", "fedperc"
SAMPLES = ("1", "5", "15", "all")
REPEATS = 30
USERS = {
    "seen": "Table 1: perplexity of seen users",
    "unseen": "Table 2: perplexity of unseen users",
}
FROZEN = "fedperc_frozen"
# Best rates on validation users of the TV shows; FedPerC has the rate of its preset.
_RATES = {
    **{name: {"client_learning_rate": 0.003} for name in IN_TABLES if name != "fedperc"},
    "split_learning": {"client_learning_rate": 0.0005},
}
TABLE_ROWS = tuple(
    Row(
        method.title,
        FEDPERC if name == "fedperc" else _RIVALS,
        {"method": name, **_RATES.get(name, {})},
    )
    for name, method in IN_TABLES.items()
)
# Lines of the tables: title, the runs with their figures, and whether figures depend on the number
# of a user's samples.
LINES = {
    "fedperc": (IN_TABLES["fedperc"].title, "fedperc", True),
    FROZEN: ("FedPerC (Frozen)", "fedperc", False),
    **{n: (method.title, n, True) for n, method in IN_TABLES.items() if n != "fedperc"},
    BASE: ("Base model", BASE, False),
}
# Milliseconds of a pass on an NVIDIA A40, train and test.
PAPER_PASSES = {
    "fedperc": (88.18, 40.37),
    "fedperc_generated": (55.96, 47.02),
    "split_learning": (222.08, 65.42),
    "meta_learning": (111.81, 36.77),
}
CAPTION = (
    "Perplexity by the number of a user's other utterances used for fine-tuning. Generated only "
    "reads them; Frozen and the base model do not use them. Brackets have the paper's figures. "
    "Lower is better."
)
TABLE_3 = (
    "Milliseconds of a step of one user, and of a forward pass, both on 15 utterances: median ± "
    "standard deviation, all methods in turn in one process. Brackets have the paper's figures, on "
    "an A40. FedPerC (Frozen) is FedPerC without steps before a test, and has no passes. Bytes are "
    "those that a user keeps, receives and sends in a round. A user needs the kept and received "
    "ones, and the frozen base of {:,} bytes, which it receives once; the last column has them in "
    "per cent of Split-Learning's (paper: 0.001 %)."
)
PAIRED = (
    "Increase of perplexity after all samples, in per cent, over the base model and over FedPerC. "
    f"{DIFFERENCES}"
)


@functools.cache
def published() -> dict[tuple[str, ...], float]:
    """Returns Tables 1 and 2, means over 15 seeds, by data set, users, line and samples."""
    path = pathlib.Path(__file__).with_name("published_perplexities.csv")
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return {tuple(row[:4]): float(row[4]) for row in rows}


# Other parts of the base, compared with FedPerC.
_METHODS = {method.name: method for method in METHODS}
ADAPTED, _WIDE = " (adapted base)", " (all matrices)"
BASE_ROW = "Base model"
# With factors for all matrices, LoRA profits from a higher rank than its default of 8.
_ALL_MATRICES: dict[str, Value] = {"lora_matrices": "all", "lora_rank": 32}


def _row(name: str, rate: float, finetuning: float, **values: Value) -> Row:
    rates = {"client_learning_rate": rate, "finetuning_learning_rate": finetuning}
    values = {"method": name, "proximal": 0.01, **rates, **values}
    return Row(_METHODS[name].title, _RIVALS, values)


def _wide(row: Row, **values: Value) -> Row:
    """Returns the row with factors of rank 32 for all matrices of a block."""
    return Row(f"{row.name}{_WIDE}", row.preset, {**row.values, **_ALL_MATRICES, **values})


def _central(name: str, rate: float, **values: Value) -> Row:
    """Returns the row of centralised training: one epoch per round, in larger batches."""
    options = {"local_steps": 0, "client_batch_size": 64, "client_learning_rate": rate}
    options.update(total_rounds=4, rounds_per_eval=2)
    return Row(_METHODS[name].title, _RIVALS, {"method": name, **options, **values})


FEDPERC_ROW = Row("FedPerC", FEDPERC, {"method": "fedperc"})
PART_ROWS = (
    FEDPERC_ROW,
    Row("FedPerC (4 vectors)", FEDPERC, {"method": "fedperc", "prefix_length": 4}),
    _row("shared_prefix", 0.1, 0.001),
    _row("shared_bias", 0.1, 0.003),
    _row("personal_bias", 0.03, 0.003),
    _row("shared_layer_prefix", 0.1, 0.001, prefix_length=4),
    _row("personal_layer_prefix", 0.01, 0.001, prefix_length=4),
    _row("lora", 0.01, 0.0003),
    _wide(_row("lora", 0.006, 0.0003), total_rounds=32),
    _wide(_row("lora_bias", 0.006, 0.0003), total_rounds=32),
    _row("ffa_lora", 0.03, 0.0003),
    _row("fedsa_lora", 0.003, 0.0003),
    _wide(_row("fedsa_lora", 0.001, 0.0003), total_rounds=24),
    _row("personal_lora", 0.003, 0.0003),
    _row("feddpa", 0.003, 0.0003),
    _row("rolora", 0.01, 0.0003),
    _row("meta_learning", 0.003, 0.0001, proximal=1.0),
    _row("meta_learning_bias", 0.001, 0.0001, proximal=1.0, local_rate_factor=10.0),
    _central("central_fedperc", 0.01),
    _central("central_personal_bias", 0.01),
    _central("central_personal_layer_prefix", 0.003, prefix_length=4),
    _central("central_fedsa_lora", 0.001),
    _central("central_personal_lora", 0.001),
    _central("central_meta_learning_bias", 0.001),
    _wide(_central("central_lora_bias", 0.001)),
    _wide(_central("central_fedsa_lora", 0.001)),
    Row(f"FedPerC{ADAPTED}", FEDPERC, {"method": "fedperc", "base_model_adapted": True}),
)
# Rows with a local and a shared part, and the rows with only that shared part.
SHARED = {
    f"LoRA + personal bias{_WIDE}": f"LoRA{_WIDE}",
    "FedDPA": "LoRA",
    "Meta-Learning + personal bias": "Meta-Learning",
}
ABOUT_PARTS = (
    "Perplexity of test utterances of seen users, after fine-tuning on all of their other held-out "
    "utterances, which the base model does not use; lower is better. New lines are test utterances "
    "that no training utterance repeats word for word: {share} of all test utterances are "
    "repeated, {long} of those with {words} words and more. Bytes are those that a user keeps, and "
    "receives and sends in a round, without the frozen base of {frozen:,} bytes. All matrices: "
    "LoRA has factors of rank 32 for all four matrices of a block, and trains for 32 rounds, "
    "FedSA-LoRA for 24. Other rows have the preset's rounds, and LoRA of rank 8 for the matrix of "
    "queries, keys and values. Central: a server trains on all users' data, with a part for each "
    "user, and is not fine-tuned before a test."
)
PAIRED_PARTS = (
    "Increase of perplexity, in per cent, on the same users: over the base model, over FedPerC, "
    "and over the shared part without a local part. Brackets have the 95 % interval of a "
    "bootstrap over users, separately by seed. A difference is significant if its interval does "
    "not contain 0."
)
