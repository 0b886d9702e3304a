"""FedPerC beside other parts of the same frozen base: what each costs, and what it gains.

Not in the paper: parts that are shared, each user's own or both, compared on the same users, with
the bytes that each keeps and moves, with the base by itself, and with what a server that has
everybody's data makes of the same parts.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.papers.fedperc.client_losses import LONG, measure_losses
from experiments.papers.reproduction import Reproduction, Row, choose_rows
from experiments.papers.result_table import Cell, Cells, Column, Report, ResultTable
from experiments.papers.runs import Run, complete
from fedpersonal.evaluation.paired_bootstrap import PairedDifference, paired_bootstrap
from fedpersonal.options import Value
from fedpersonal.tasks.utterances.methods import METHODS
from fedpersonal.tasks.utterances.task import TASK

_FEDPERC, _RIVALS = "tv_shows_{}", "tv_shows_{}_rivals"
_METHODS = {method.name: method for method in METHODS}
_PERPLEXITY, _NEW = "perplexity", "new lines"
_BYTES = ("kept", "received", "sent")
_ADAPTED, _WIDE = " (adapted base)", " (all matrices)"
_BASE = "Base model"
# Beside all matrices LoRA has room for more than its default rank of 8.
_ALL_MATRICES: dict[str, Value] = {"lora_matrices": "all", "lora_rank": 32}


def _row(name: str, rate: float, finetuning: float, **values: Value) -> Row:
    rates = {"client_learning_rate": rate, "finetuning_learning_rate": finetuning}
    values = {"algorithm": name, "proximal": 0.01, **rates, **values}
    return Row(_METHODS[name].title, _RIVALS, values)


def _wide(row: Row, **values: Value) -> Row:
    """Returns the row with factors of rank 32 beside all matrices of a block."""
    return Row(f"{row.name}{_WIDE}", row.preset, {**row.values, **_ALL_MATRICES, **values})


def _central(name: str, rate: float, **values: Value) -> Row:
    """Returns the row of a server with everybody's data: an epoch a round, in larger batches."""
    own = {"local_steps": 0, "client_batch_size": 64, "client_learning_rate": rate}
    own.update(total_rounds=4, rounds_per_eval=2)
    return Row(_METHODS[name].title, _RIVALS, {"algorithm": name, **own, **values})


_OWN = Row("FedPerC", _FEDPERC, {"algorithm": "fedperc"})
ROWS = (
    _OWN,
    Row("FedPerC (4 vectors)", _FEDPERC, {"algorithm": "fedperc", "prefix_length": 4}),
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
    Row(f"FedPerC{_ADAPTED}", _FEDPERC, {"algorithm": "fedperc", "base_model_adapted": True}),
)
# Rows with a part of each user's own, and those that have the same shared one alone.
_SHARED = {
    f"LoRA + personal bias{_WIDE}": f"LoRA{_WIDE}",
    "Meta-Learning + personal bias": "Meta-Learning",
}
_ABOUT = (
    "Test utterances of users who train, after fine-tuning on all of their other held-out ones; "
    "the base model does nothing with them. Perplexity, lower is better; and on new lines, those "
    "that no utterance for training repeats word for word: {share} of all test utterances are "
    "repeated, {long} of those with {words} words and more. Bytes that a user keeps, and receives "
    "and sends in a round, beside the frozen base of {frozen:,} bytes. All matrices: LoRA has rank "
    "32 beside all four of a block, and trains for 32 rounds, FedSA-LoRA for 24; other rows have "
    "the preset's rounds, and LoRA rank 8 beside the matrix of queries, keys and values. Central: "
    "a server has everybody's data, and a part for each user; it does nothing more before a test."
)
_PAIRED = (
    "By how many per cent perplexity is higher on the same users: than the base model's, than "
    "FedPerC's, and than that of the shared part alone, without a user's own. In brackets the "
    "interval of 95 % of bootstraps over users, each seed's apart. Where it has no zero inside, "
    "the difference is not by chance."
)


def run(asked: Reproduction) -> Report:
    """Runs what is missing; returns the tables."""
    rows = choose_rows(ROWS, asked.rows, table="fedperc_parts")
    asked = asked.with_preset(quick=asked.is_generated)
    if asked.given.get("base_model"):
        # A base that is named is not trained further.
        rows = [row for row in rows if "base_model_adapted" not in row.values]
    source = asked.read(TASK, _FEDPERC)
    # FedPerC and the base by itself are what the others are compared with.
    trained = {
        row.name: asked.runs(TASK, row, _folder(row.name), note=", seen users", evaluate_on="seen")
        for row in dict.fromkeys([_OWN, *rows])
    }
    losses = {name: _measured(asked, name, own) for name, own in trained.items()}
    for name in list(trained):
        if name.removesuffix(_ADAPTED) == _OWN.name:
            base = name.replace(_OWN.name, _BASE)
            losses[base] = _measured(asked, base, trained[name], base_alone=True)
    every = [run for own in (*trained.values(), *losses.values()) for run in own]
    complete(every, source.describe(), isolated=asked.isolated)
    first = losses[_OWN.name][0].summary
    about = _ABOUT.format(
        share=_per_cent(first["repeated"]),
        long=_per_cent(first["repeated_long"]),
        words=LONG,
        frozen=trained[_OWN.name][0].summary["frozen_bytes"],
    )
    preset = f"Preset {asked.preset}; {asked.seeds_in_words()}."
    parts: list[str | ResultTable] = [
        f"# FedPerC beside other parts of a frozen base, on {source.name}",
        f"{preset} {about}",
        _perplexities(trained, losses),
        _PAIRED,
        ResultTable("paired", _paired(losses, "all")),
        "The same on new lines:",
        ResultTable("paired_new", _paired(losses, "new")),
    ]
    return Report("fedperc_parts", asked.seeds, parts, facts={"data": source.describe()})


def _folder(name: str) -> str:
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def _measured(asked: Reproduction, name: str, runs: Sequence[Run], **options: bool) -> list[Run]:
    """Returns the runs that measure each user's losses after others' training."""
    measure = functools.partial(measure_losses, **options)
    folder = asked.output_dir / f"losses_{_folder(name)}"
    return [
        Run(
            f"losses, {name}, {own.path.name.replace('_', ' ')}",
            folder / own.path.name,
            TASK,
            own.values,
            own,
            measure,
        )
        for own in runs
    ]


def _perplexities(
    trained: Mapping[str, Sequence[Run]], losses: Mapping[str, Sequence[Run]]
) -> ResultTable:
    from fedpersonal.local_state.store import LOCAL_STATE

    cells: Cells = {}
    for name, runs in losses.items():
        cells[name] = {
            column: Cell(tuple(_perplexity(run.summary[lines]) for run in runs))
            for column, lines in ((_PERPLEXITY, "all"), (_NEW, "new"))
        }
        first = trained[name][0] if name in trained else None
        if first and _METHODS[first.options.algorithm].is_federated:
            whose = ("local", "broadcast", "aggregated")
            sizes = [first.summary[f"{way}_bytes_per_client"] for way in whose]
            sizes[0] *= (first.path / LOCAL_STATE).exists()
            cells[name].update({way: Cell((size,)) for way, size in zip(_BYTES, sizes)})
    digits: dict[Column, int] = {_PERPLEXITY: 2, _NEW: 2, **dict.fromkeys(_BYTES, 0)}
    return ResultTable("perplexity", cells, digits=digits)


def _perplexity(sums: Mapping[str, Sequence[float]]) -> float:
    return math.exp(sum(sums["loss"]) / sum(sums["tokens"]))


def _paired(losses: Mapping[str, Sequence[Run]], lines: str) -> Cells:
    """Compares each row with the base model, FedPerC and its shared part, on the same users."""
    cells: Cells = {}
    for name in (row for row in losses if row != _BASE):
        others = {_BASE: _BASE, _OWN.name: _OWN.name, "the shared part": _SHARED.get(name, name)}
        cells[name] = {
            f"than {told}": Cell((_higher_by(compare(losses[name], losses[other], lines)),))
            for told, other in others.items()
            if other in losses and other != name
        }
    return cells


def compare(first: Sequence[Run], second: Sequence[Run], lines: str) -> PairedDifference:
    """Compares losses a token of two methods, whose runs are by the same seeds."""
    columns = [[run.summary[lines][c] for c in ("loss", "tokens")] for run in (*first, *second)]
    sums = np.moveaxis(np.array(columns, np.float64), 1, -1)
    return paired_bootstrap(sums[: len(first)], sums[len(first) :])


def _higher_by(found: PairedDifference) -> str:
    mean, low, high = (100 * math.expm1(d) for d in (found.difference, found.low, found.high))
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})" if found.has_interval else f"{mean:+.1f}"


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f} %"
