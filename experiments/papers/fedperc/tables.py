"""Tables 1, 2 and 3 of the FedPerC paper (Silva et al., EACL Findings 2023) in one sweep."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.fedperc import results, tables_text
from experiments.papers.fedperc.embedding_runs import compare_embeddings, embedding_run
from experiments.papers.fedperc.pass_times import PassOptions, time_passes
from experiments.papers.fedperc.results import COLUMNS, UNTRAINED
from experiments.papers.fedperc.runs import (
    SPLITS,
    UntrainedOptions,
    UtteranceSource,
    complete,
    evaluate_untrained,
    run_options,
    train,
)
from experiments.papers.fedperc.sample_curves import plot_by_samples
from experiments.papers.presets import Preset
from experiments.papers.summarized_runs import SummarizedRun
from fedpersonal.atomic_files import write_csv, write_json, write_text
from fedpersonal.tasks.utterances.methods import METHODS


def run(
    sources: Sequence[UtteranceSource],
    preset: Preset,
    output_dir: str,
    *,
    seeds: Sequence[int],
    scale_rounds: float = 1.0,
    repeats: int = 30,
    isolated: bool = True,
) -> str:
    """Runs what is missing; writes `fedperc_tables.md`, `.json`, `.csv` and `.png`.

    Args:
        sources: The data sets, each with its base model.
        preset: The hyperparameters.
        output_dir: Receives the tables, the picture and the runs.
        seeds: Seeds to run each method and split with.
        scale_rounds: Factor of the rounds.
        repeats: How often each pass is timed.
        isolated: Whether each run has a process of its own.

    Returns:
        The tables as Markdown.

    Raises:
        UserError: Before the first run, if data cannot be read or split with each seed; if a run
            diverges, or its folder holds another one.
    """
    _check_splits(sources, seeds)
    folder = pathlib.Path(output_dir)
    options = preset.options_of("fedperc", scale_rounds=scale_rounds)
    found, markdown = [], ["# Tables 1, 2 and 3 of FedPerC"]
    for source in sources:
        own = _measure(
            source,
            preset,
            folder / source.choice.source,
            seeds=seeds,
            scale_rounds=scale_rounds,
            repeats=repeats,
            isolated=isolated,
        )
        found.append(own)
        markdown += tables_text.heading(
            own, preset=preset.name, options=options, num_seeds=len(seeds)
        )
        markdown += tables_text.perplexity_tables(own["perplexities"], own["lower_by"])
        markdown += tables_text.pass_table(own["passes"], own["memory"])
        markdown += tables_text.embedding_note(own["own_embeddings"])
    _draw(folder / "fedperc_tables.png", found)
    write_csv(
        folder / "fedperc_tables.csv",
        [
            {
                "dataset": own["data"]["dataset"],
                **{name: row[name] for name in ("split", "method", "samples")},
                "seed": seed,
                "perplexity": value,
            }
            for own in found
            for row in own["perplexities"]
            for seed, value in zip(seeds, row["by_seed"])
        ],
    )
    write_json(
        folder / "fedperc_tables.json",
        {"preset": preset.name, "seeds": list(seeds), "datasets": found},
    )
    text = "\n\n".join(markdown)
    write_text(folder / "fedperc_tables.md", text)
    return text


def _check_splits(sources: Sequence[UtteranceSource], seeds: Sequence[int]) -> None:
    """Splits all data once: seconds, where a refusal in the middle of the runs would cost hours."""
    for source in sources:
        base = source.load_base()
        for split in SPLITS:
            for seed in seeds:
                source.load_data(base, split=split, seed=seed)


def _measure(
    source: UtteranceSource,
    preset: Preset,
    folder: pathlib.Path,
    *,
    seeds: Sequence[int],
    scale_rounds: float,
    repeats: int,
    isolated: bool,
) -> dict[str, Any]:
    """Completes the runs of one data set and returns all that is said of it."""
    trained = {
        (split, algorithm, seed): SummarizedRun(
            f"{METHODS[algorithm].title}, {split} users, seed {seed}",
            folder / f"{algorithm}_{split}" / f"seed_{seed}",
            run_options(
                preset.options_of(algorithm, scale_rounds=scale_rounds, seed=seed), split=split
            ),
        )
        for seed in seeds
        for split in SPLITS
        for algorithm in METHODS
    }
    untrained = {
        (split, UNTRAINED, seed): SummarizedRun(
            f"base model alone, {split} users, seed {seed}",
            folder / f"{UNTRAINED}_{split}" / f"seed_{seed}",
            UntrainedOptions(split, seed),
        )
        for seed in seeds
        for split in SPLITS
    }
    embeddings = [embedding_run(trained["known", "fedperc", seed]) for seed in seeds]
    history = preset.options.history_length
    passes = SummarizedRun(
        "times of passes", folder / "passes", PassOptions(repeats, history, seeds[0])
    )
    complete(list(trained.values()), source, train, isolated=isolated)
    complete(list(untrained.values()), source, evaluate_untrained, isolated=isolated)
    complete(embeddings, source, compare_embeddings, isolated=isolated)
    complete([passes], source, time_passes, isolated=isolated)

    runs: Mapping[tuple, SummarizedRun] = {**trained, **untrained}
    of_split = {
        split: {name: [runs[split, name, seed] for seed in seeds] for name in (*METHODS, UNTRAINED)}
        for split in SPLITS
    }
    rows = [
        row
        for split in SPLITS
        for row in results.perplexities(source.choice.source, split, of_split[split])
    ]
    return {
        "data": source.choice.describe(),
        "base": tables_text.about_base(source.load_base()),
        "perplexities": rows,
        "lower_by": results.lower_by(rows),
        "user_percentiles": {split: results.user_percentiles(of_split[split]) for split in SPLITS},
        "passes": passes.summary(),
        "memory": results.memory(of_split["known"]),
        "own_embeddings": results.embedding_shares(embeddings),
    }


def _draw(path: pathlib.Path, found: Sequence[Mapping[str, Any]]) -> None:
    plot_by_samples(
        [
            (
                f"{own['data']['dataset']}, {split} users",
                [row for row in own["perplexities"] if row["split"] == split],
            )
            for own in found
            for split in SPLITS
        ],
        path,
        title="Perplexity by how much a user has written",
        titles={column.name: column.title for column in COLUMNS},
    )
