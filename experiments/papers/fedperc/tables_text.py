"""FedPerC's tables as Markdown."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.fedperc import published_figures
from experiments.papers.fedperc.published_figures import SAMPLES
from experiments.papers.fedperc.results import COLUMNS
from experiments.papers.sweep import as_github_table, with_deviation
from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.tasks.utterances.base_model_choice import NOTES

_TITLES = {column.name: column.title for column in COLUMNS}
_TABLES = {"known": ("Table 1", "known users"), "withheld": ("Table 2", "withheld users")}
# Among what a summary has, in the order of the table.
_BYTES = ("kept", "received", "sent", "personalisation")


def about_base(base: BaseModel) -> dict[str, Any]:
    """Returns the base model's name and size, and whether it was pretrained here."""
    return {
        "name": base.name,
        "num_parameters": sum(value.size for value in base.weights.values()),
        "num_layers": base.config.n_layer,
        "dim": base.config.n_embd,
        "num_tokens": base.config.vocab_size,
        "pretrained_here": (pathlib.Path(base.source) / NOTES).exists(),
    }


def heading(found: Mapping[str, Any], *, preset: str, options: Any, num_seeds: int) -> list[str]:
    """Returns what the figures of one data set are about.

    Args:
        found: The data set's `data` and `base`, from `UtteranceChoice.describe` and `about_base`.
        preset: The preset's name.
        options: FedPerC's options.
        num_seeds: How many seeds there are.
    """
    data, base = found["data"], found["base"]
    seeds = (
        f"mean ± standard deviation over {num_seeds} seeds"
        if num_seeds > 1
        else "a single seed, hence no standard deviation"
    )
    what = (
        f"{base['name']}: {base['num_parameters']:,} parameters, {base['num_layers']} layers of "
        f"{base['dim']}, {base['num_tokens']:,} tokens"
    )
    if base["pretrained_here"]:
        what += (
            "; a small one that was pretrained here, on what users who do not take part have "
            "written. Its perplexities cannot be compared with those of the paper's DistilGPT2, of "
            "82 million parameters and other tokens: only the order of the methods can."
        )
    else:
        what += "."
    return [
        f"## {data['dataset']}",
        f"{data['num_utterances']:,} utterances of {data['num_users']:,} users, "
        f"{data['num_contexts']} contexts. Preset {preset}: {options.total_rounds:,} rounds of "
        f"at most {options.clients_per_round:,} users, {options.local_steps} steps of "
        f"{options.client_batch_size} utterances each; {seeds}. Base model: {what}",
    ]


def perplexity_tables(
    rows: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Returns Tables 1 and 2, each with a note of who is lower than whom.

    Args:
        rows: From `results.perplexities`, of both splits.
        comparisons: From `results.lower_by`.
    """
    parts = []
    for split, (table, users) in _TABLES.items():
        own = {(row["method"], row["samples"]): row for row in rows if row["split"] == split}
        published = any(row["paper"] for row in own.values())
        brackets = "; in brackets the paper's" if published else ""
        parts.append(f"### {table}: perplexity of {users}")
        parts.append(
            "By how many of a user's other utterances its copy of the model was fine-tuned on; "
            "Generated reads them only, Frozen and the base model do nothing with them"
            f"{brackets}. Lower is better."
        )
        cells = [
            [samples, *(_cell(own[column.name, samples]) for column in COLUMNS)]
            for samples in SAMPLES
        ]
        parts.append(as_github_table(cells, ["samples", *(column.title for column in COLUMNS)]))
        parts.append("\n".join(_comparison(c) for c in comparisons if c["split"] == split))
    return parts


def pass_table(
    passes: Mapping[str, Mapping[str, Mapping[str, float]]], memory: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Returns Table 3, and the memory of each method.

    Args:
        passes: From `pass_times.measure_passes`.
        memory: From `results.memory`.
    """
    rows = []
    for row in memory:
        method = row["method"]
        cells = [_TITLES[method]]
        for what, paper in (
            ("train", published_figures.TRAIN_PASS),
            ("test", published_figures.TEST_PASS),
        ):
            own = passes[method][what]
            measured = with_deviation(own["median"], own["sd"], digits=1)
            cells.append(f"{measured} ({paper[method][0]:.1f})")
        rows.append([*cells, *(f"{row[name]:,}" for name in _BYTES), f"{row['per_cent']:.3g}"])
    return [
        "### Table 3: time and memory",
        "Milliseconds of a step of one user, and of a forward pass, both on 15 utterances: median "
        "± standard deviation, all methods by turns in one process; in brackets the paper's, of an "
        "A40. FedPerC (Frozen) is FedPerC without steps before a test, and has no passes of its "
        "own. Bytes that a user keeps, receives and sends in a round; and what it needs beside the "
        f"frozen base of {memory[0]['frozen']:,} bytes, which it receives once: kept and received, "
        f"also in per cent of Split-Learning's (paper: {published_figures.MEMORY_PERCENT} %).",
        as_github_table(
            rows,
            ["", "train, ms", "test, ms", "kept", "received", "sent", "needed", "of heads, %"],
        ),
    ]


def embedding_note(shares: Mapping[str, Any]) -> list[str]:
    """Returns what is known of whose embedding predicts whom.

    Args:
        shares: From `results.embedding_shares`.
    """
    if shares["pairs_won"] is None:
        return ["Whose embedding: no user shares a context with another, so none was compared."]
    of_users, of_mean, of_pairs = (
        with_deviation(100 * shares[name], deviation and 100 * deviation, digits=0)
        for name, deviation in (
            (name, shares[f"{name}_sd"]) for name in ("beats_median", "beats_mean", "pairs_won")
        )
    )
    return [
        f"Whose embedding: the held-out utterances of {of_users} % of {shares['num_users']:,} "
        "known users are likelier behind their own embedding, without fine-tuning, than behind the "
        f"median one of others in the same context; of {of_mean} % likelier than by the mean of "
        f"the others' losses. Of {shares['num_pairs']:,} pairs of a user and another, the user's "
        f"own is better in {of_pairs} %, by chance 50 %."
    ]


def _cell(row: Mapping[str, Any]) -> str:
    measured = with_deviation(row["perplexity"], row["perplexity_sd"], digits=2)
    return measured if row["paper"] is None else f"{measured} ({row['paper']:.1f})"


def _comparison(row: Mapping[str, Any]) -> str:
    def listed(values: Sequence[float]) -> str:
        return " / ".join(f"{value:.1f}" for value in values)

    paper = "" if row["paper"] is None else f" (paper: {listed(row['paper'])})"
    return (
        f"- {_TITLES[row['method']]} is lower than {_TITLES[row['baseline']]} by "
        f"{listed(row['per_cent'])} % after {' / '.join(SAMPLES)} samples{paper}."
    )
