"""Rows, published figures and captions of FedPerC (Silva et al., EACL Findings 2023)."""

from __future__ import annotations

import csv
import functools
import pathlib

from experiments.papers.reproduction import Row
from experiments.papers.table import DIFFERENCES
from fedpersonal.options import Value
from fedpersonal.tasks.utterances.methods import FEDERATED, METHODS

FEDPERC, _RIVALS = "tv_shows_{}", "tv_shows_{}_rivals"

# Tables 1, 2 and 3.
IN_TABLES = {method.name: method for method in FEDERATED if not method.parts}
BASE, OURS = "base_model", "fedperc"
SAMPLES = ("1", "5", "15", "all")
REPEATS = 30
USERS = {"seen": "Table 1: perplexity of seen users", "unseen": "Table 2: of unseen users"}
FROZEN = "fedperc_frozen"
# Rates that were best on validation users of the TV shows; FedPerC has that of its preset.
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
# What stands in the tables: its title, the runs that it is read off, and whether it depends on how
# many samples a user gives.
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
WHAT = (
    "By how many of a user's other utterances its copy of the model was fine-tuned on; Generated "
    "reads them only, Frozen and the base model do nothing with them; in brackets the paper's, "
    "where it has any. Lower is better."
)
TABLE_3 = (
    "Milliseconds of a step of one user, and of a forward pass, both on 15 utterances: median ± "
    "standard deviation, all methods by turns in one process; in brackets the paper's, of an A40. "
    "FedPerC (Frozen) is FedPerC without steps before a test, and has no passes of its own. Bytes "
    "that a user keeps, receives and sends in a round; and what it needs beside the frozen base of "
    "{:,} bytes, which it receives once: kept and received, also in per cent of Split-Learning's "
    "(paper: 0.001 %)."
)
PAIRED = (
    "By how many per cent perplexity after all samples is higher than the base model's, and than "
    f"FedPerC's. {DIFFERENCES}"
)


@functools.cache
def published() -> dict[tuple[str, ...], float]:
    """Returns Tables 1 and 2, means over 15 seeds, by data set, users, line and samples."""
    path = pathlib.Path(__file__).with_name("published_perplexities.csv")
    with open(path, encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    return {tuple(row[:4]): float(row[4]) for row in rows}


# Other parts beside FedPerC.
_METHODS = {method.name: method for method in METHODS}
ADAPTED, _WIDE = " (adapted base)", " (all matrices)"
BASE_ROW = "Base model"
# Beside all matrices LoRA has room for more than its default rank of 8.
_ALL_MATRICES: dict[str, Value] = {"lora_matrices": "all", "lora_rank": 32}


def _row(name: str, rate: float, finetuning: float, **values: Value) -> Row:
    rates = {"client_learning_rate": rate, "finetuning_learning_rate": finetuning}
    values = {"method": name, "proximal": 0.01, **rates, **values}
    return Row(_METHODS[name].title, _RIVALS, values)


def _wide(row: Row, **values: Value) -> Row:
    """Returns the row with factors of rank 32 beside all matrices of a block."""
    return Row(f"{row.name}{_WIDE}", row.preset, {**row.values, **_ALL_MATRICES, **values})


def _central(name: str, rate: float, **values: Value) -> Row:
    """Returns the row of a server with everybody's data: an epoch a round, in larger batches."""
    own = {"local_steps": 0, "client_batch_size": 64, "client_learning_rate": rate}
    own.update(total_rounds=4, rounds_per_eval=2)
    return Row(_METHODS[name].title, _RIVALS, {"method": name, **own, **values})


OWN_ROW = Row("FedPerC", FEDPERC, {"method": "fedperc"})
PART_ROWS = (
    OWN_ROW,
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
# Rows with a part of each user's own, and those that have the same shared one alone.
SHARED = {
    f"LoRA + personal bias{_WIDE}": f"LoRA{_WIDE}",
    "FedDPA": "LoRA",
    "Meta-Learning + personal bias": "Meta-Learning",
}
ABOUT_PARTS = (
    "Test utterances of users who train, after fine-tuning on all of their other held-out ones; "
    "the base model does nothing with them. Perplexity, lower is better; and on new lines, those "
    "that no utterance for training repeats word for word: {share} of all test utterances are "
    "repeated, {long} of those with {words} words and more. Bytes that a user keeps, and receives "
    "and sends in a round, beside the frozen base of {frozen:,} bytes. All matrices: LoRA has rank "
    "32 beside all four of a block, and trains for 32 rounds, FedSA-LoRA for 24; other rows have "
    "the preset's rounds, and LoRA rank 8 beside the matrix of queries, keys and values. Central: "
    "a server has everybody's data, and a part for each user; it does nothing more before a test."
)
PAIRED_PARTS = (
    "By how many per cent perplexity is higher on the same users: than the base model's, than "
    "FedPerC's, and than that of the shared part alone, without a user's own. In brackets the "
    "interval of 95 % of bootstraps over users, each seed's apart. Where it has no zero inside, "
    "the difference is not by chance."
)
