"""A tiny leaderboard, killed half way; ranks, tuning and advice by hand-made figures; its pages."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys

import pandas as pd
import pytest

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import find_metric
from fedpersonal.files import read_json
from fedpersonal.suite import PRESETS
from fedpersonal.suite.commands.option_flags import read_flagfile
from fedpersonal.suite.leaderboard import advice, page, table
from fedpersonal.suite.leaderboard.board import SETTINGS, STARTS_FILE
from fedpersonal.suite.leaderboard.joined import join_tables
from fedpersonal.suite.leaderboard.settings import (
    TunedSetting,
    ranges_of,
    read_settings,
    settings_to_try,
    write_settings,
)
from fedpersonal.suite.leaderboard.table import BASELINE_ROW, Cell, Row, _Tested
from fedpersonal.suite.leaderboard.tasks import DATA, ENTRIES, MOVIELENS, QUICK, REFERENCE
from fedpersonal.suite.papers import recommendation
from fedpersonal.suite.papers.table import Cell as Figure
from fedpersonal.suite.sweeps.trials import Validation, write_validation
from tests.suite import small
from tests.suite.commands.killing import ENVIRONMENT, kill_when
from tests.suite.leaderboard import tiny_board
from tests.suite.leaderboard.tiny_board import RANKING, RATINGS

# These depend on the machine and the moment.
_PASSING = ("date", "commit", "round_seconds")


def without(value, names):
    """Returns JSON without the entries of these names, however deep."""
    if isinstance(value, list):
        return [without(one, names) for one in value]
    if isinstance(value, dict):
        return {name: without(one, names) for name, one in value.items() if name not in names}
    return value


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    """A folder with a table that was killed half way and made again, and one made undisturbed."""
    folder = tmp_path_factory.mktemp("board")
    small.write_ratings(folder / "ratings.csv", num_users=20)
    command, log = ["-m", "tests.suite.leaderboard.tiny_board"], folder / "log"
    ended = functools.partial((folder / "killed").rglob, STARTS_FILE)
    kill_when(lambda: [*ended()], [*command, "killed"], folder, log)
    done = {path: path.stat().st_mtime_ns for path in ended()}
    with log.open("a") as file:
        options = {"cwd": folder, "env": ENVIRONMENT, "stdout": file, "stderr": file}
        for name in ("killed", "undisturbed"):
            subprocess.run([sys.executable, *command, name], check=True, **options)
    return folder, done


@pytest.mark.exhaustive
def test_a_killed_table_goes_on_and_ends_with_the_same_figures(folder):
    folder, done = folder
    assert 1 <= len(done) < 4
    assert all(path.stat().st_mtime_ns == written for path, written in done.items())
    assert f"{4 - len(done)} of 4 runs to test, 2 in parallel" in (folder / "log").read_text()
    made = [
        without(read_json(folder / name / "leaderboard.json"), _PASSING)
        for name in ("killed", "undisturbed")
    ]
    assert made[0] == made[1]


@pytest.mark.exhaustive
def test_cells_are_what_the_runs_have_found(folder):
    out = folder[0] / "killed"
    content = read_json(out / "leaderboard.json")
    rows = {row["name"]: row for row in content["rows"]}
    assert list(rows)[-1] == table.BASELINE_NAME and {REFERENCE, "furl"} < {*rows}
    flat = pd.read_csv(out / "leaderboard.csv", float_precision="round_trip").set_index(
        ["task", "method"]
    )
    for entry in (RATINGS, RANKING):
        for method in (REFERENCE, "furl"):
            (run,) = (out / "runs" / entry.name / method).glob("*/seed_0")
            summary, cell = read_json(run / "summary.json"), rows[method]["cells"][entry.name]
            name = find_metric(entry.metric, summary["test"])
            assert cell["value"]["values"] == [summary["test"][name]]
            assert flat.loc[(entry.name, method), "value"] == summary["test"][name]
            assert cell["down"] == summary["broadcast_bytes_per_client"] > 0
            assert cell["rounds"] == 6
            is_kept = method == "furl"
            assert cell["kept"] == (12 if is_kept else 0)
            # A user's embedding has two numbers, and its bias one. New users have kept nothing.
            assert [*cell["starts"]] == (
                ["rebuilt", "updated"] if is_kept and entry.is_seen else []
            )
            assert cell["setting"] is None
    assert not [*out.rglob("local_state.sqlite*")]
    told = content["advice"][0]
    assert told.startswith("4 of 4 cells are not tuned")
    assert told in (out / "leaderboard.md").read_text()
    text = (out / "leaderboard.html").read_text()
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert text.count("<tr data-kind=") == 3 * 3


@pytest.mark.exhaustive
def test_tables_of_single_tasks_join_to_that_of_all(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder[0])
    whole, paths = tiny_board.board(folder[0] / "killed"), []
    for entry in whole.entries:
        alone = table.tabulate_board(dataclasses.replace(whole, entries=[entry]), {})
        (tmp_path / entry.name).mkdir()
        paths.append(page.write_pages(alone, [], tmp_path / entry.name, f"of {entry.name}")[-1])
    joined, expected = join_tables(paths[::-1]), table.tabulate_board(whole, {})
    assert [*map(vars, joined.rows)] == [*map(vars, expected.rows)]
    assert joined.clear == expected.clear
    assert joined.entries == [RATINGS, RANKING] and joined.seeds == expected.seeds
    # By the command, with what tuning has found.
    content, found = read_json(paths[0]), TunedSetting({"l2": 0.1}, "rmse", 1.0, None, 4, 0, [100])
    content["rows"][0]["cells"]["ratings"]["setting"] = dataclasses.asdict(found)
    paths[0].write_text(json.dumps(content))
    given = ",".join(map(str, paths))
    command = [sys.executable, "-m", "experiments.leaderboard", f"--joined={given}"]
    subprocess.run([*command, f"--output_dir={tmp_path}"], check=True, env=ENVIRONMENT)
    key = ("ratings", content["rows"][0]["name"])
    assert read_settings(tmp_path / SETTINGS, QUICK) == {key: found}
    assert "`" not in (tmp_path / "leaderboard.html").read_text().split("<script>")[0]
    made = read_json(tmp_path / "leaderboard.json")
    assert "--joined=ratings/leaderboard.json,ranking/leaderboard.json" in made["command"]
    text = (tmp_path / "leaderboard.md").read_text()
    assert all(f"by `of {entry.name}`" in text for entry in whole.entries)
    # What is joined can be joined again; and a task's last table counts.
    again = {**read_json(paths[0]), "rows": []}
    paths[0].write_text(json.dumps(again))
    joined = join_tables([tmp_path / "leaderboard.json", paths[0]])
    assert [[*row.cells] for row in joined.rows] == [["ranking"]] * 3
    paths[0].write_text(json.dumps({**again, "size": "full"}))
    with pytest.raises(UserError, match="is quick and .* is full; join tables of one size"):
        join_tables(paths[::-1])
    paths[0].write_text("{}")
    for path, why in ((paths[0], "is no leaderboard.json"), (tmp_path / "a", "No such file")):
        with pytest.raises(UserError, match=why):
            join_tables([path])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("why", "place", "tasks"), [("diverged", 2.0, 2), ("refused", None, 1)])
def test_who_diverges_is_last_and_who_does_not_do_a_task_has_no_rank(
    folder, monkeypatch, why, place, tasks
):
    monkeypatch.chdir(folder[0])
    board = tiny_board.board(folder[0] / "killed")
    made = table.tabulate_board(board, {("ranking", "furl"): f"{why}: of its rate"})
    row = next(row for row in made.rows if row.name == "furl")
    assert (row.cells["ranking"].rank, row.num_tasks) == (place, tasks)
    assert page._of_task(made, RANKING).rows[1][1][-1].text == f"{why}: of its rate"
    told = advice.advise(made)
    assert any("Over all tasks" in sentence for sentence in told) == (tasks == 2)


@pytest.mark.parametrize(
    ("better", "expected"),
    [
        # Nobody can be told apart.
        ([], [2.0, 2.0, 2.0]),
        ([("a", "b"), ("a", "c"), ("b", "c")], [1.0, 2.0, 3.0]),
        # Two are level behind one.
        ([("c", "a"), ("c", "b")], [2.5, 2.5, 1.0]),
        # One is level with both, who are not with each other.
        ([("a", "c")], [1.5, 2.0, 2.5]),
    ],
)
def test_methods_that_cannot_be_told_apart_share_a_rank(better, expected):
    assert [*table.rank(["a", "b", "c"], frozenset(better)).values()] == expected


def clients(values, weights=10):
    names = [f"u{n}" for n in range(len(values))]
    columns = {
        "client": names,
        "num_examples": weights,
        "rmse_after": values,
        "ndcg@10_all": values,
    }
    return _Tested([pd.DataFrame(columns)], [{"rmse": 1.0}])


def test_intervals_over_clients_tell_who_is_better():
    low, high = [1.0 + 0.01 * (n % 5) for n in range(40)], [1.5 + 0.01 * (n % 7) for n in range(40)]
    mixed = [value + (0.5 if n % 2 else -0.5) for n, value in enumerate(low)]
    tested = {"low": clients(low), "high": clients(high), "mixed": clients(low[:20] + high[20:])}
    names = [*tested, "diverged"]
    # Who has no result is behind all others; and less of an error is better.
    behind = {(name, "diverged") for name in tested}
    orders = {("low", "high"), ("low", "mixed"), ("mixed", "high")}
    assert table._clearly_better(RATINGS, tested, names) == behind | orders
    turned = {(second, first) for first, second in orders}
    assert table._clearly_better(RANKING, tested, names) == behind | turned
    tested = {"low": clients(low), "mixed": clients(mixed)}
    assert table._clearly_better(RANKING, tested, [*tested]) == frozenset()


def test_methods_whose_clients_have_the_same_figures_count_once(tmp_path):
    figures = {"plain": [1.0, 2.0], "other": [1.0, 3.0], "twin": [1.0, 2.0], "gone": None}
    tested = {name: clients(own, [1, 1]) for name, own in figures.items() if own}
    tested["mixed"] = clients([2.0, 1.0], [1, 1])
    assert table.same_as(RATINGS, tested, [*figures, "mixed"]) == {"twin": "plain"}
    better = frozenset({("plain", "other")})
    made = tiny_board.make_table(
        {"plain": (1.0, 1.0), "twin": (1.0, 3.0), "other": (2.0, 2.0)},
        {"ratings": better, "ranking": frozenset()},
    )
    own = {row.name: row for row in made.rows}
    own["twin"].cells["ratings"] = dataclasses.replace(
        own["twin"].cells["ratings"], same_as="plain"
    )
    assert made.is_clear("ratings", own["twin"], own["other"])
    assert not made.is_clear("ratings", own["twin"], own["plain"])
    written = page.write_pages(made, [], tmp_path, "a test")
    html, markdown, flat, content = (path.read_text() for path in written)
    assert html.count("same as PLAIN") == markdown.count("same as PLAIN") == 2
    assert pd.read_csv(written[2]).same_as.dropna().tolist() == ["plain"]
    joined = {row.name: row.cells["ratings"].same_as for row in join_tables([written[3]]).rows}
    assert joined == {"plain": "", "twin": "plain", "other": ""}
    # On ratings alone, two methods are compared.
    alone = dataclasses.replace(made, entries=[RATINGS])
    (told,) = [line for line in advice.advise(alone) if "mean rank" in line][:1]
    assert "among 2 methods" in told


def test_tuning_has_the_split_of_the_table_and_skips_idle_fine_tuning(tmp_path):
    names = ("fed_recon", "fed_recon_finetuning")
    asked = dataclasses.replace(tiny_board.board(tmp_path), names=names)
    plain, twin = (RATINGS.library.methods[name] for name in names)
    (ratings, ranking) = asked.entries
    assert asked._tuned_as(ratings, twin) is asked._tuned_as(ratings, plain) is plain
    assert asked._tuned_as(ranking, twin) is twin
    found = TunedSetting({"l2": 0.25}, "rmse", 1.0, None, 4, 0, [100], 0)
    write_settings(tmp_path / SETTINGS, QUICK, {("ratings", "fed_recon"): found})
    for method in (plain, twin):
        (trial,) = asked.trials["ratings", method.name]
        assert trial.setting == found.setting == asked.setting(ratings, method).setting
        tried = asked._sweep(ratings, method, 2).trials
        values = [one.run.values for one in (trial, *tried)]
        assert {own["split_seed"] for own in values} == {0}
        assert values[0]["seed"] != values[1]["seed"]


def test_who_is_worse_off_is_counted_among_clients_with_examples():
    ours, others = clients([1.0, 2.0, 3.0, 9.0], [1, 1, 1, 0]), clients([2.0, 2.0, 2.0, 2.0])
    assert table._share_worse(RATINGS, ours.clients, others.clients) == pytest.approx(1 / 3)
    assert table._share_worse(RANKING, ours.clients, others.clients) == pytest.approx(1 / 4)


@pytest.mark.exhaustive(but=("ratings",))
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_each_method_of_each_task_has_a_setting_and_the_same_budget(entry):
    where = {DATA: "folder", MOVIELENS: "folder"}
    task = entry.library
    assert {*entry.sizes} == {"quick", "full"}
    for size in entry.sizes:
        for method in task.methods.values():
            values = entry.values(size, method, where)
            if method.name == "fedperc_projected":
                values["user_vectors"] = "vectors.csv"  # It does not go without.
            settled = task.with_defaults(task.options(**values))
            tested = getattr(settled, "evaluate_on", None)
            assert tested in (None, "seen" if entry.is_seen else "unseen")
            tried = settings_to_try(entry, values, method, 4)
            own = entry.first_options(method, values)
            ranges = ranges_of(task, {**values, **own}, method)
            assert {*ranges} - {"server_learning_rate"} <= {*method.options.declarations()}
            if not ranges:
                continue
            assert len({tuple(one.items()) for one in tried}) == 4
            first = task.with_defaults(task.options(**{**values, **own}))
            assert tried[0] == {name: getattr(first, name) for name in tried[0]}
            assert tried[:3] == settings_to_try(entry, values, method, 3)
            for one in tried:
                task.with_defaults(task.options(**{**values, **one}))
                assert own.keys() <= one.keys()
            usual = method.server_optimizer
            assert usual in (None, settled.server_optimizer)


def test_a_method_starts_from_its_row_in_the_tables_of_the_papers():
    rows = {row.values["method"]: row for row in recommendation.ROWS if "method" in row.values}
    methods = RANKING.library.methods

    def first(entry, name):
        method = entry.library.methods[name]
        values = entry.values(QUICK, method, {})
        return {**values, **entry.first_options(method, values)}

    of = {name: first(RANKING, name) for name in methods}
    rate = "reconstruction_learning_rate"
    assert of["fed_recon"][rate] == rows["fed_recon"].values[rate] != of["pfedrec"].get(rate)
    # By its rounds, or by what it shares; the size settles how many rounds there are.
    assert of["fed_recon_finetuning"][rate] == of["fed_recon"][rate]
    rate = "client_learning_rate"
    assert of["fed_avg_finetuning"][rate] == rows["fed_avg_finetuning"].values[rate]
    # Rates go with the server's optimizer: these three average, as FedAvg's preset does.
    names = ("fed_avg", "fed_dyn", "reptile", "ifca")
    rates = [first(RATINGS, name)[rate] for name in names]
    assert rates == [0.2, 0.2, 0.2, 0.1]
    preset = read_flagfile(PRESETS / "movielens_fed_avg.flags", RATINGS.library.options)
    assert RATINGS.first["fed_avg"].items() <= preset.items()
    assert of["scaffold"][rate] == of["fed_avg_finetuning"][rate] != of["pfedrec"][rate]
    assert {values["total_rounds"] for n, values in of.items() if methods[n].is_federated} == {100}
    of_ratings = [e for e in ENTRIES if e.library is RATINGS.library]
    assert [first(entry, "per_fed_avg")["adaptation_steps"] for entry in of_ratings] == [50, 50]
    # Where no table has a method, its steps ahead come to a client's own.
    assert "envelope" not in first(of_ratings[0], "pfedme")
    assert of["pfedme"]["outer_learning_rate"] == of["pfedme"][rate] == 1 / of["pfedme"]["envelope"]
    steps = of["per_fed_avg"]["adaptation_steps"]
    assert of["per_fed_avg"]["adaptation_learning_rate"] == of["per_fed_avg"][rate] / steps
    # A pull goes no farther than its usual weight does at a tenth, or it diverges.
    assert of["ditto"]["pull"] * of["ditto"][rate] == pytest.approx(0.1)
    assert of["fed_prox"]["proximal"] * of["fed_prox"][rate] == pytest.approx(0.01)
    assert first(RATINGS, "fed_prox")["proximal"] == 0.1
    # Nobody tunes what a method does not read.
    tuned = {name: ranges_of(RANKING.library, of[name], methods[name]) for name in of}
    assert "outer_learning_rate" in tuned["pfedme"] and rate not in tuned["pfedme"]
    recon = RATINGS.library.methods["fed_recon"]
    values = RATINGS.values(QUICK, recon, {})
    assert {*ranges_of(RATINGS.library, values, recon)} == {rate, "server_learning_rate"}


def test_the_best_on_validation_clients_is_found_and_kept(tmp_path, monkeypatch):
    asked = tiny_board.board(tmp_path, tune=3)
    sweeps = {
        (entry.name, method.name): asked._sweep(entry, method, 3)
        for entry in asked.entries
        for method in asked.methods(entry)
    }
    assert len({len(sweep.settings) for sweep in sweeps.values()}) == 1
    for (task, method), sweep in sweeps.items():
        metric = {"ratings": "rmse", "ranking": "ndcg@10_of_19"}[task]
        for trial, score in zip(sweep.trials, (2.0, 1.0, 3.0)):
            assert trial.seed not in asked.seeds
            told = Validation({metric: score}, "x")
            if (task, method, score) == ("ratings", "furl", 1.0):
                told = Validation({}, diverged="the loss is nan")
            write_validation(trial.run, told)
    asked._tune(3)
    best = {"ratings": 1, "ranking": 2}
    for (task, method), sweep in sweeps.items():
        found = asked.tuned[task, method]
        place = 0 if (task, method) == ("ratings", "furl") else best[task]
        assert found.setting == sweep.settings[place]
        assert (found.preset_validation, found.num_settings) == (2.0, 3)
        assert found.num_diverged == (1 if (task, method) == ("ratings", "furl") else 0)
        told = page._settings(Row(method, method, "federated", {}), Cell(setting=found), {})
        assert told.endswith(f"(best of 3{', 1 diverged' * found.num_diverged})")
        (trial,) = asked.trials[task, method]
        assert found.setting.items() <= trial.run.values.items()
    # Another board takes what was found, from the same folder or from a file.
    kept = read_settings(tmp_path / SETTINGS, QUICK)
    other = tiny_board.board(tmp_path / "other", settings=tmp_path / SETTINGS)
    assert other.tuned == asked.tuned == kept and read_settings(tmp_path / SETTINGS, "full") == {}
    write_settings(tmp_path / SETTINGS, "full", kept)
    assert (
        read_settings(tmp_path / SETTINGS, QUICK)
        == read_settings(tmp_path / SETTINGS, "full")
        == kept
    )
    key = ("ratings", "furl")
    old = {**kept, key: dataclasses.replace(kept[key], setting={"rate": 1.0})}
    write_settings(tmp_path / SETTINGS, QUICK, old)
    with pytest.raises(UserError, match="furl on ratings have rate, which is no option any more"):
        _ = tiny_board.board(tmp_path).trials


def test_runs_beside_other_guesses_make_no_table():
    def tested(*names):
        return _Tested([], [{"rmse": 1.0, "guesses": {name: {"rmse": 1.0} for name in names}}])

    cell = table._baseline_cell(RATINGS, {"a": tested("one", "two"), "b": tested("one", "two")})
    assert cell["ratings"].value.mean == 1.0
    with pytest.raises(UserError, match=r"Runs of ratings have different baselines"):
        table._baseline_cell(RATINGS, {"a": tested("one", "two"), "b": tested("one")})


def test_advice_names_the_best_its_ties_and_what_moves_least():
    found = TunedSetting({"client_learning_rate": 0.1}, "rmse", 1.0, None, 4, 0, [100])
    clear = {
        "ratings": frozenset([("a", "b"), ("a", REFERENCE)]),
        "ranking": frozenset([(REFERENCE, "c")]),
    }
    ranks = {"a": (1.0, 2.0), "b": (3.0, 2.0), "c": (2.0, 4.0), REFERENCE: (3.0, 2.0)}
    moved = {"a": 9, "b": 5, "c": 1, REFERENCE: 10}
    told = advice.advise(
        tiny_board.make_table(ranks, clear, kept=["a"], moved=moved, setting=found)
    )
    assert told[0] == (
        "Over all tasks, use A: its mean rank over 2 tasks is the lowest, 1.5 among 4 methods. "
        "On no task does it differ clearly from C."
    )
    assert told[1].startswith(
        "For unseen clients (only Ratings, unseen users), use A: its mean rank is the lowest, 1.0"
    )
    assert told[2].startswith(
        "For seen clients (only Next item among all), use A or B or FED_AVG_FINETUNING: "
    )
    # C moves least, but is clearly worse than the baseline on one task.
    assert told[3] == (
        "To send fewer bytes, use B: among the methods that are clearly worse than "
        "FED_AVG_FINETUNING on no task, it moves the fewest, 50% of those of FED_AVG_FINETUNING."
    )
    assert told[4].startswith("If clients can keep nothing between rounds, use B or FED_AVG_F")
    # Who is best by the mean may be clearly worse somewhere, and all others, too.
    everywhere = {"ratings": frozenset(("a", name) for name in ranks if name != "a")}
    clear = {**everywhere, "ranking": frozenset([("b", "a"), (REFERENCE, "b"), (REFERENCE, "c")])}
    told = advice.advise(tiny_board.make_table(ranks, clear, setting=found))
    assert told[0].endswith(
        "Each other method is clearly worse on at least one task. But 1 of them is clearly better "
        "on another task."
    )
    clear["ratings"] |= {(REFERENCE, "a")}
    told = advice.advise(tiny_board.make_table(ranks, clear, moved=moved, setting=found))
    assert told[3] == (
        "To send fewer bytes: each other method is clearly worse than FED_AVG_FINETUNING on at "
        "least one task, or does not run on all tasks."
    )
    # Worse than the guess is another thing than what cannot be told from it.
    guessed = tiny_board.make_table(ranks, clear, setting=found)
    intervals = {"a": (0.1, 0.3), "b": (-0.1, 0.1), "c": (-0.3, -0.1), REFERENCE: (-0.1, 0.3)}
    for row in guessed.rows:
        above = Figure((sum(intervals[row.name]) / 2,), interval=intervals[row.name])
        row.cells["ratings"] = dataclasses.replace(row.cells["ratings"], above_baseline=above)
    guessed.rows.append(Row("guess", "Best guess", BASELINE_ROW, {"ratings": Cell(Figure((1.0,)))}))
    of_ratings = next(text for text in advice.advise(guessed) if text.startswith("Ratings, uns"))
    assert of_ratings.endswith(
        "Of 4 methods, 1 is clearly worse than the strongest baseline and 2 differ from it within "
        "noise."
    )
    guessed.rows[1].cells["ranking"].starts["updated"] = 1.25
    of_ranking = next(text for text in advice.advise(guessed) if text.startswith("Next item"))
    assert of_ranking.endswith("B reaches the best figure, 1.2500 instead of 1.0000 (no interval).")
    for row, updated in zip(guessed.rows[2:], (1.5, 0.75)):
        row.cells["ranking"].starts["updated"] = updated
    assert page._updated(guessed.rows[:-1], RANKING) == "These steps improve 2 of 3 methods."
    untuned = advice.advise(tiny_board.make_table(ranks, clear))
    assert untuned[0].startswith(
        "8 of 8 cells are not tuned: 4 of Ratings, unseen users, 4 of Next item among "
        "all. Their first"
    )
    # What is mostly untuned has no say in what is best.
    for row in guessed.rows[:-1]:
        row.cells["ranking"] = dataclasses.replace(row.cells["ranking"], setting=None)
    told = advice.advise(guessed)
    assert told[0].endswith("Mean ranks leave out Next item among all.")
    assert told[1].startswith("On Ratings, unseen users, use A: its mean rank is the lowest, 1.0 ")
    assert told[-1].startswith("Next item among all (not tuned): ")
    # And who is refused there is behind nobody for it.
    guessed.rows[0].cells["ranking"] = Cell(why="refused: of its layers")
    assert [row.name for row in table.in_order(guessed.rows)] == ["a", "c", "b", REFERENCE, "guess"]
    assert [row.mean_rank(guessed.averaged) for row in guessed.rows] == [1.0, 3.0, 2.0, 3.0, None]


def test_advice_says_nothing_of_what_has_no_figure():
    def told(*diverged):
        ranks = {"a": (1.0, 1.0), "b": (2.0, 2.0), REFERENCE: (3.0, 3.0)}
        made = tiny_board.make_table(ranks, dict.fromkeys(("ratings", "ranking"), frozenset()))
        made.rows.append(
            Row("guess", "Best guess", BASELINE_ROW, {"ratings": Cell(Figure((1.0,)))})
        )
        for row in made.rows[:-1]:
            above = Figure((0.0,), interval=(-1.0, 1.0))
            cell = dataclasses.replace(row.cells["ratings"], above_baseline=above)
            lost = Cell(rank=cell.rank, why="diverged: of its rate")
            row.cells["ratings"] = lost if row.name in diverged else cell
        return advice.advise(made)

    of_ratings = told("a", "b")[-2]
    assert of_ratings.endswith(
        "Of 3 methods, 1 differs from the strongest baseline within noise and 2 are without a "
        "figure."
    )
    assert told(REFERENCE)[-2] == "Ratings, unseen users: FedAvg + fine-tuning has no figure."
    everything = told("a", "b", REFERENCE)
    # What diverges was not left untuned.
    assert everything[0].startswith("3 of 6 cells are not tuned: 3 of Next item among all.")
    assert not any("For unseen clients, use" in sentence for sentence in everything)


def test_advice_says_how_much_it_owes_to_the_choice_of_tasks():
    rows = [
        Row(name, name, "federated", {task: Cell(rank=place) for task, place in zip("xyz", places)})
        for name, places in {
            "a": (1.0, 1.0, 4.0),
            "b": (2.0, 2.0, 1.0),
            "c": (3.0, 3.0, 2.0),
        }.items()
    ]
    # Three tasks are drawn without the third in 8 of 27 cases: then a is ahead.
    assert advice._resampled(rows, "xyz") == (
        "b ranks first in 70% of bootstrap resamples of the tasks, a in 30%."
    )
    entries = [dataclasses.replace(RATINGS, name=n, title=n.upper()) for n in "xyz"]
    without_one = " Dropping one task changes the winner: a without Z."
    assert advice._without_one(rows, entries) == without_one
    # Each of many equals is seldom ahead, and one is named all the same.
    tasks = [f"task {i}" for i in range(40)]
    many = [
        Row(best, best, "federated", {task: Cell(rank=1.0 + (task != best)) for task in tasks})
        for best in tasks
    ]
    assert re.fullmatch(
        r"task \d+ ranks first in \d% of bootstrap resamples of the tasks\.",
        advice._resampled(many, tasks),
    )


def test_texts_of_others_do_not_break_the_pages(tmp_path):
    made = tiny_board.make_table(
        {"a|<b>": (2.0, 1.0), REFERENCE: (1.0, 2.0)}, {"ratings": (), "ranking": ()}
    )
    paths = page.write_pages(made, ["<script>"], tmp_path, "fedpersonal leaderboard")
    texts = {path.suffix: path.read_text() for path in paths}
    assert "A|&lt;B&gt;" in texts[".html"] and "<li>&lt;script&gt;</li>" in texts[".html"]
    assert "| A∣<B>" in texts[".md"]
    assert json.loads(texts[".json"])["tasks"]["ratings"]["better"] == "lower"
    # A task's rows go by their rank in it.
    for task, is_first in (("Ratings, unseen users", False), ("Next item", True)):
        section = texts[".md"].split(f"## {task}")[1].split("## ")[0]
        assert (section.index("| A∣<B>") < section.index(f"| {REFERENCE.upper()}")) == is_first
