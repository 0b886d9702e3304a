"""Advice on methods: sentences made from the table by rules, which report overlapping intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from fedpersonal.errors import join_words
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.leaderboard.table import (
    BASELINE_ROW,
    FEDERATED,
    LOCAL,
    SERVER,
    BoardTable,
    Cell,
    Row,
    tuned_tasks,
    verdict,
)
from fedpersonal.suite.leaderboard.tasks import REFERENCE, Entry

# Most methods that a sentence names.
_FEW = 6
# Bootstrap resamples of tasks, and the least share of first places with which a method is named.
_RESAMPLES = 10_000
_OFTEN = 0.1


def advise(table: BoardTable) -> list[str]:
    """Returns the sentences."""
    ranked = [row for row in table.rows if row.kind == FEDERATED]
    averaged = table.averaged
    included = [entry for entry in table.entries if entry.name in averaged]
    unseen = [entry for entry in included if not entry.is_seen]
    seen = [entry for entry in included if entry.is_seen]
    is_part = len(included) < len(table.entries)
    scope = f"Over all{' tuned' * is_part} tasks"
    if len(included) == 1:
        scope = f"On {included[0].title}" if is_part else "On this task"
    sentences = [_untuned(table, ranked), _best(table, ranked, included, scope)]
    if unseen and seen:
        for part, kind in (unseen, "unseen"), (seen, "seen"):
            only = f" (only {part[0].title})" if len(part) == 1 else ""
            sentences.append(_best(table, ranked, part, f"For {kind} clients{only}"))
    sentences += [_least(table, ranked, included), _without_state(table, ranked, included)]
    for entry in table.entries:
        sentences.append(_on_task(table, ranked, entry, entry not in included))
    return [sentence for sentence in sentences if sentence]


def _untuned(table: BoardTable, rows: Sequence[Row]) -> str:
    """Returns a warning if methods that were not tuned are compared."""
    cells = [(task, row.cells[task]) for row in rows for task in row.ranks]
    untuned = [task for task, cell in cells if cell.is_untuned]
    if not untuned:
        return ""
    counts = [(untuned.count(entry.name), entry.title) for entry in table.entries]
    places = join_words([f"{count} of {title}" for count, title in counts if count])
    averaged = table.averaged
    left_out = [entry.title for entry in table.entries if entry.name not in averaged]
    consequence = f"Mean ranks leave out {join_words(left_out)}."
    if not tuned_tasks(table.rows):
        consequence = "So the sentences below are a trial of the command, not advice."
    elif not left_out:
        consequence = "So these cells say little about their methods."
    return (
        f"{len(untuned)} of {len(cells)} cells are not tuned: {places}. Their first setting fits "
        f"some methods better than others. {consequence}"
    )


def _best(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry], scope: str) -> str:
    """Returns a sentence on the rows with the best mean rank, and on rows that tie with them.

    Only rows with a rank on all the tasks count. With fewer than two, the sentence is empty.
    """
    names = [entry.name for entry in entries]
    complete = [row for row in rows if row.ranks.keys() >= {*names}]
    methods = {row.name for row in complete}
    # Methods with equal figures on all of these tasks count once.
    complete = [row for row in complete if not all(row.cells[n].same_as in methods for n in names)]
    if len(complete) < 2 or not any(row.cells[n].value for row in complete for n in names):
        return ""

    lowest, best = _lowest(complete, names)
    tied = [
        row.title
        for row in complete
        if row not in best and not any(table.is_clear(n, one, row) for one in best for n in names)
    ]
    over = f" over {len(names)} tasks" if len(names) > 1 else ""
    titles = " or ".join(row.title for row in best)
    subject = "its mean rank" if len(best) == 1 else "their mean rank"
    sentence = f"{scope}, use {titles}: {subject}{over} is the lowest, "
    sentence += f"{lowest:.1f} among {len(complete)} methods."
    if len(names) > 2:
        sentence = f"{sentence} {_resampled(complete, names)}{_without_one(complete, entries)}"
    if tied:
        others = f"{len(tied)} other methods" if len(tied) > _FEW else join_words(tied)
        return f"{sentence} On no task does it differ clearly from {others}."
    if len(best) == len(complete):
        return f"{sentence} They differ clearly on no task."
    sentence += f" Each other method is clearly worse{' on at least one task' * (len(names) > 1)}."
    above = [
        row
        for row in complete
        if row not in best and any(table.is_clear(n, row, one) for one in best for n in names)
    ]
    if above:  # With a single task, no method is above the best one.
        sentence += f" But {len(above)} of them {_are(len(above))} clearly better on another task."
    return sentence


def _lowest(rows: Sequence[Row], names: Sequence[str]) -> tuple[float, list[Row]]:
    """Returns the lowest mean rank, and the rows that have it."""
    means = [statistics.mean(row.ranks[name] for name in names) for row in rows]
    lowest = min(means)
    return lowest, [row for row, mean in zip(rows, means) if mean == lowest]


def _without_one(rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Returns a sentence on the tasks without which another method has the lowest mean rank."""
    names = [entry.name for entry in entries]
    best, changes = {*_lowest(rows, names)[1]}, []
    for entry in entries:
        others = _lowest(rows, [name for name in names if name != entry.name])[1]
        if best.isdisjoint(others):
            titles = " or ".join(row.title for row in others)
            changes.append(f"{titles} without {entry.title}")
    return f" Dropping one task changes the winner: {'; '.join(changes)}." if changes else ""


def _resampled(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Returns a sentence on how often methods rank first in bootstrap resamples of the tasks."""
    ranks = np.array([[row.ranks[name] for name in names] for row in rows])
    resamples = generator(Purpose.TASKS, 0).integers(len(names), size=(_RESAMPLES, len(names)))
    means = ranks[:, resamples].mean(axis=2)
    shares = (means == means.min(axis=0)).mean(axis=1)
    (share, title), *others = sorted(zip(shares, (row.title for row in rows)), reverse=True)[:_FEW]
    first = f"{title} ranks first in {share:.0%} of bootstrap resamples of the tasks"
    often = [f"{other} in {less:.0%}" for less, other in others if less >= _OFTEN]
    return f"{', '.join([first, *often])}."


def _least(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Returns advice on the fewest bytes without being clearly worse than the reference."""
    reference = next((row for row in rows if row.name == REFERENCE), None)
    if reference is None or len(rows) < 2:
        return ""
    names = [entry.name for entry in entries if entry.name in reference.cells]
    if not any(_moved(reference.cells[name]) for name in names):
        return ""

    def share(row: Row) -> float:
        pairs = [(row.cells[name], reference.cells[name]) for name in names]
        return statistics.mean(_moved(one) / _moved(other) for one, other in pairs if _moved(other))

    def is_candidate(row: Row) -> bool:
        return all(
            name in row.cells
            and row.cells[name].value is not None
            and _moved(row.cells[name]) > 0
            and not table.is_clear(name, reference, row)
            for name in names
        )

    candidates = [row for row in rows if is_candidate(row)]
    if not {*candidates} - {reference}:
        return (
            f"To send fewer bytes: each other method is clearly worse than {reference.title} on at "
            "least one task, or does not run on all tasks."
        )
    least = min(candidates, key=share)
    if least is reference or share(least) > 0.99:
        return (
            "To send fewer bytes: no method moves fewer without being clearly worse than "
            f"{reference.title} on at least one task."
        )
    return (
        f"To send fewer bytes, use {least.title}: among the methods that are clearly worse than "
        f"{reference.title} on no task, it moves the fewest, {share(least):.0%} of those of "
        f"{reference.title}."
    )


def _moved(cell: Cell) -> float:
    return float((cell.down or 0) + (cell.up or 0))


def _without_state(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Returns a sentence on the best method whose clients keep nothing between rounds."""
    stateless = [row for row in rows if not any(cell.kept for cell in row.cells.values())]
    return _best(table, stateless, entries, "If clients can keep nothing between rounds")


def _on_task(table: BoardTable, rows: Sequence[Row], entry: Entry, is_untuned: bool) -> str:
    """Returns sentences on a task: comparisons with the reference, baselines and no federation."""
    cells = {row: row.cells[entry.name] for row in table.rows if entry.name in row.cells}
    ranked = sorted((r for r in rows if entry.name in r.ranks), key=lambda r: r.ranks[entry.name])
    reference = next((row for row in ranked if row.name == REFERENCE), None)
    ranked = [row for row in ranked if not cells[row].same_as]
    title = f"{entry.title}{' (not tuned)' * is_untuned}"
    if reference is None or cells[reference].value is None:
        return f"{title}: FedAvg + fine-tuning has no figure."
    better = [row.title for row in ranked if verdict(cells[row].behind, entry) > 0]
    subject = f"{join_words(better)} {_are(len(better))}"
    if len(better) > _FEW:
        subject = f"{len(better)} methods, {better[0]} first, are"
    text = f"{subject} clearly better" if better else "no method is clearly better"
    sentences = [f"{title}: {text} than FedAvg + fine-tuning."]
    if any(row.kind == BASELINE_ROW for row in cells):
        above = [cells[row].above_baseline for row in ranked]
        verdicts = [verdict(figure, entry) for figure in above if figure]
        worse, alike, diverged = verdicts.count(-1), verdicts.count(0), above.count(None)
        parts = []
        if worse:
            parts.append(f"{worse} {_are(worse)} clearly worse than the strongest baseline")
        if alike:
            differ = "differs" if alike == 1 else "differ"
            other = "it" if worse else "the strongest baseline"
            parts.append(f"{alike} {differ} from {other} within noise")
        if diverged:
            parts.append(f"{diverged} {_are(diverged)} without a figure")
        if parts:
            *first, last = parts
            text = f"{', '.join(first)} and {last}" if first else last
            sentences.append(f"Of {len(ranked)} methods, {text}.")
    sentences += _best_other_start(ranked, entry)
    framing = [row for row in cells if row.kind in (LOCAL, SERVER)]
    ahead = [row.title for row in framing if verdict(cells[row].behind, entry) > 0]
    if ahead:
        better_than = f"{_are(len(ahead))} clearly better than FedAvg + fine-tuning"
        sentences.append(f"{join_words(ahead)} {better_than}, without federation.")
    return " ".join(sentences)


def _best_other_start(rows: Sequence[Row], entry: Entry) -> list[str]:
    """Returns a sentence if a start without a rank, rebuilt or updated, reaches the best figure."""
    sign, digits = (1 if entry.lower else -1), entry.digits
    usual = {row.title: row.cells[entry.name].value for row in rows}
    candidates = [
        (sign * value, row.title) for row in rows for value in row.cells[entry.name].starts.values()
    ]
    best, title = min(candidates, default=(math.inf, ""))
    kept = usual.get(title)
    if kept is None or best >= min(sign * figure.mean for figure in usual.values() if figure):
        return []
    return [
        f"With its local variables rebuilt or updated before the test, {title} reaches the best "
        f"figure, {sign * best:.{digits}f} instead of {kept.mean:.{digits}f} (no interval)."
    ]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
