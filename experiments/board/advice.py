"""What to take when: sentences that a rule draws from the table, honest where intervals overlap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from experiments.board.table import (
    FEDERATED,
    GUESS_ROW,
    LOCAL,
    SERVER,
    BoardTable,
    Cell,
    Row,
    tuned_tasks,
    verdict,
)
from experiments.board.tasks import BASELINE, Entry
from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import listed

# So many ties are named.
_FEW = 6
# Draws of tasks, and the share of them in which another method is first that is named, too.
_DRAWS = 10_000
_OFTEN = 0.1


def advise(table: BoardTable) -> list[str]:
    """Returns the sentences."""
    ranked = [row for row in table.rows if row.kind == FEDERATED]
    averaged = table.averaged
    asked = [entry for entry in table.entries if entry.name in averaged]
    new = [entry for entry in asked if not entry.is_seen]
    seen = [entry for entry in asked if entry.is_seen]
    is_part = len(asked) < len(table.entries)
    where = f"Over all{' tuned' * is_part} tasks"
    if len(asked) == 1:
        where = f"On {asked[0].title}" if is_part else "Here"
    found = [_untuned(table, ranked), _best(table, ranked, asked, where)]
    if new and seen:
        for part, who in (new, "are new"), (seen, "have taken part"):
            alone = f" ({part[0].title}, alone)" if len(part) == 1 else ""
            found.append(_best(table, ranked, part, f"Where clients {who}{alone}"))
    found += [_least(table, ranked, asked), _without_state(table, ranked, asked)]
    for entry in table.entries:
        found.append(_on_task(table, ranked, entry, entry not in asked))
    return [sentence for sentence in found if sentence]


def _untuned(table: BoardTable, rows: Sequence[Row]) -> str:
    """Says so where methods are compared that were not tuned."""
    cells = [(task, row.cells[task]) for row in rows for task in row.ranks]
    untuned = [task for task, cell in cells if cell.is_untuned]
    if not untuned:
        return ""
    counts = [(untuned.count(entry.name), entry.title) for entry in table.entries]
    where = listed([f"{count} of {title}" for count, title in counts if count])
    averaged = table.averaged
    left_out = [entry.title for entry in table.entries if entry.name not in averaged]
    so = f"Mean ranks leave out {listed(left_out)}."
    if not tuned_tasks(table.rows):
        so = "So take what follows as a trial of the command, not as advice."
    elif not left_out:
        so = "So these say little of their methods."
    return (
        f"{len(untuned)} of {len(cells)} cells are not tuned: {where}. Their first setting suits "
        f"some methods and not others. {so}"
    )


def _best(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry], where: str) -> str:
    """Says which of some rows has the best mean rank, and which others are nowhere clearly worse.

    They are rows of all these tasks; nothing is said of fewer than two.
    """
    names = [entry.name for entry in entries]
    complete = [row for row in rows if row.ranks.keys() >= {*names}]
    known = {row.name for row in complete}
    # Methods that are the same on all of these tasks count once.
    complete = [row for row in complete if not all(row.cells[n].same_as in known for n in names)]
    if len(complete) < 2 or not any(row.cells[n].value for row in complete for n in names):
        return ""

    lowest, best = _lowest(complete, names)
    tied = [
        row.title
        for row in complete
        if row not in best and not any(table.is_clear(n, one, row) for one in best for n in names)
    ]
    of_tasks = f" of {len(names)} tasks" if len(names) > 1 else ""
    titles = " or ".join(row.title for row in best)
    has = "its mean rank" if len(best) == 1 else "their mean rank"
    sentence = f"{where}, take {titles}: {has}{of_tasks} is the lowest, "
    sentence += f"{lowest:.1f} among {len(complete)} methods."
    if len(names) > 2:
        sentence = f"{sentence} {_luck(complete, names)}{_without_one(complete, entries)}"
    if tied:
        few = f"{len(tied)} others" if len(tied) > _FEW else listed(tied)
        return f"{sentence} No task tells it clearly from {few}."
    if len(best) == len(complete):
        return f"{sentence} No task tells them clearly apart."
    sentence += f" Each other one is clearly worse{' on some task' * (len(names) > 1)}."
    above = [
        row
        for row in complete
        if row not in best and any(table.is_clear(n, row, one) for one in best for n in names)
    ]
    if above:  # On one task who is best has none above it.
        sentence += (
            f" But {len(above)} of them {_are(len(above))} clearly better on some other task."
        )
    return sentence


def _lowest(rows: Sequence[Row], names: Sequence[str]) -> tuple[float, list[Row]]:
    """Returns the lowest mean rank, and whose it is."""
    means = [statistics.mean(row.ranks[name] for name in names) for row in rows]
    lowest = min(means)
    return lowest, [row for row, mean in zip(rows, means) if mean == lowest]


def _without_one(rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Says of which tasks each alone decides whose mean rank is the lowest."""
    names = [entry.name for entry in entries]
    best, decided = {*_lowest(rows, names)[1]}, []
    for entry in entries:
        others = _lowest(rows, [name for name in names if name != entry.name])[1]
        if best.isdisjoint(others):
            titles = " or ".join(row.title for row in others)
            decided.append(f"{titles} without {entry.title}")
    return f" One task less, and it is another: {'; '.join(decided)}." if decided else ""


def _luck(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Says how often which mean rank is the lowest, by a bootstrap over tasks."""
    ranks = np.array([[row.ranks[name] for name in names] for row in rows])
    drawn = generator(Purpose.TASKS, 0).integers(len(names), size=(_DRAWS, len(names)))
    means = ranks[:, drawn].mean(axis=2)
    shares = (means == means.min(axis=0)).mean(axis=1)
    (share, title), *others = sorted(zip(shares, (row.title for row in rows)), reverse=True)[:_FEW]
    first = f"If tasks were drawn anew, {title} would have the lowest in {share:.0%} of draws"
    often = [f"{other} in {less:.0%}" for less, other in others if less >= _OFTEN]
    return f"{', '.join([first, *often])}."


def _least(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Says which method sends least, of those nowhere clearly worse than the baseline."""
    baseline = next((row for row in rows if row.name == BASELINE), None)
    if baseline is None or len(rows) < 2:
        return ""
    names = [entry.name for entry in entries if entry.name in baseline.cells]
    if not any(_moved(baseline.cells[name]) for name in names):
        return ""

    def share(row: Row) -> float:
        pairs = [(row.cells[name], baseline.cells[name]) for name in names]
        return statistics.mean(_moved(one) / _moved(other) for one, other in pairs if _moved(other))

    def may(row: Row) -> bool:
        return all(
            name in row.cells
            and row.cells[name].value is not None
            and _moved(row.cells[name]) > 0
            and not table.is_clear(name, baseline, row)
            for name in names
        )

    fitting = [row for row in rows if may(row)]
    if not {*fitting} - {baseline}:
        return (
            f"Where bytes count, each other method is clearly worse than {baseline.title} on some "
            "task, or does not do all of them."
        )
    least = min(fitting, key=share)
    about = f"Of the methods that are nowhere clearly worse than {baseline.title}, "
    if least is baseline or share(least) > 0.99:
        return f"{about}none moves fewer bytes."
    return (
        f"Where bytes count, take {least.title}. {about}it moves the fewest bytes, "
        f"{share(least):.0%} of that one's."
    )


def _moved(cell: Cell) -> float:
    return float((cell.down or 0) + (cell.up or 0))


def _without_state(table: BoardTable, rows: Sequence[Row], entries: Sequence[Entry]) -> str:
    """Says which method is best of those whose clients keep nothing between rounds."""
    stateless = [row for row in rows if not any(cell.kept for cell in row.cells.values())]
    return _best(table, stateless, entries, "Where clients can keep nothing between rounds")


def _on_task(table: BoardTable, rows: Sequence[Row], entry: Entry, is_untuned: bool) -> str:
    """Says who beats the baseline on a task, who needs no federation, and who beats no guess."""
    cells = {row: row.cells[entry.name] for row in table.rows if entry.name in row.cells}
    ranked = sorted((r for r in rows if entry.name in r.ranks), key=lambda r: r.ranks[entry.name])
    baseline = next((row for row in ranked if row.name == BASELINE), None)
    ranked = [row for row in ranked if not cells[row].same_as]
    title = f"{entry.title}{' (not tuned)' * is_untuned}"
    if baseline is None or cells[baseline].value is None:
        return f"{title}: FedAvg + fine-tuning has no figure."
    better = [row.title for row in ranked if verdict(cells[row].behind, entry) > 0]
    few = f"{listed(better)} {_are(len(better))}"
    if len(better) > _FEW:
        few = f"{len(better)} methods, first of all {better[0]}, are"
    said = f"{few} clearly better" if better else "no method is clearly better"
    sentences = [f"{title}: {said} than FedAvg + fine-tuning."]
    if any(row.kind == GUESS_ROW for row in cells):
        above = [cells[row].above_guess for row in ranked]
        verdicts = [verdict(figure, entry) for figure in above if figure]
        worse, alike, diverged = verdicts.count(-1), verdicts.count(0), above.count(None)
        told = []
        if worse:
            told.append(f"{worse} {_are(worse)} clearly worse than the best guess")
        if alike:
            told.append(f"{alike} cannot be told from {'it' if worse else 'the best guess'}")
        if diverged:
            told.append(f"{diverged} {_are(diverged)} without a figure")
        if told:
            *first, last = told
            said = f"{', '.join(first)} and {last}" if first else last
            sentences.append(f"Of {len(ranked)} methods, {said}.")
    sentences += _brought_up_to_date(ranked, entry)
    framing = [row for row in cells if row.kind in (LOCAL, SERVER)]
    ahead = [row.title for row in framing if verdict(cells[row].behind, entry) > 0]
    if ahead:
        better_than = f"{_are(len(ahead))} clearly better than FedAvg + fine-tuning"
        sentences.append(f"{listed(ahead)} {better_than}, without federation.")
    return " ".join(sentences)


def _brought_up_to_date(rows: Sequence[Row], entry: Entry) -> list[str]:
    """Says who is ahead of all others by a start of which no rank is made."""
    sign, digits = (1 if entry.lower else -1), entry.digits
    usual = {row.title: row.cells[entry.name].value for row in rows}
    found = [
        (sign * value, row.title) for row in rows for value in row.cells[entry.name].starts.values()
    ]
    best, title = min(found, default=(math.inf, ""))
    kept = usual.get(title)
    if kept is None or best >= min(sign * figure.mean for figure in usual.values() if figure):
        return []
    return [
        f"With its own part rebuilt or brought up to date before the test, {title} has the best "
        f"figure, {sign * best:.{digits}f} in place of {kept.mean:.{digits}f} (no interval)."
    ]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
