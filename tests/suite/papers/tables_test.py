"""Every table on jobs that have run nothing: its pages are those that stand in `golden/`.

python tests/suite/papers/tables_test.py

writes them anew, to be read before they are committed.
"""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import pathlib
import sys

import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.papers import ablation, fedperc_data, fedrecon_data, furl, privacy
from fedpersonal.suite.papers import recommendation as recommendations
from fedpersonal.suite.papers.reproduction import Reproduction, Row, choose_rows
from fedpersonal.suite.papers.targets import TARGETS
from fedpersonal.suite.tasks.ranking.task import TASK as INTERACTIONS
from fedpersonal.suite.tasks.ratings.task import TASK as RATINGS
from fedpersonal.suite.tasks.utterances.methods import FEDERATED
from tests.suite.papers.stubs import stub

GOLDEN = pathlib.Path(__file__).with_name("golden")
_GENERATED = {"dataset": "generated"}
_FILMS = ["Personalized Server", "Personalized FL", "Local training"]
_TWINS = ["FedRep", "FedRep (stateless)", "Personalized FL (stateless)"]
_FEW = ["FedRecon", "FedAvg + StandardEval", "Local training (seen users)"]
# By the file: the target, what is asked of it, and which fixture has its data, if one has.
CASES = {
    "table1": ("table1", {}, "few_ratings"),
    "table1_one": ("table1", {"seeds": [0], "rows": _FEW}, "few_ratings"),
    "table1_notimes": (
        "table1",
        {"seeds": [0], "rows": ["FedRecon (seen users)", "FedAvg + StandardEval"]},
        "timeless_ratings",
    ),
    "table2": ("table2", {"vocab_sizes": [300, 9000], "options": _GENERATED}, None),
    "table2_rows": (
        "table2",
        {
            "vocab_sizes": [300],
            "rows": ["Most frequent word", "Ditto (500 OOV)"],
            "options": _GENERATED,
        },
        None,
    ),
    "figure2": ("figure2", {"vocab_sizes": [300], "options": _GENERATED}, None),
    "figure3": ("figure3", {"vocab_sizes": [300], "options": _GENERATED}, None),
    "table3": ("table3", {"options": _GENERATED}, None),
    "table3_rows": ("table3", {"seeds": [0], "rows": _TWINS, "options": _GENERATED}, None),
    "table3_films": (
        "table3",
        {"seeds": [0], "rows": _FILMS, "options": {"dataset": "movielens_100k"}},
        None,
    ),
    "fedperc_tables": ("fedperc_tables", {"options": _GENERATED}, None),
    "fedperc_parts": ("fedperc_parts", {"options": _GENERATED}, None),
    "dp_table": ("dp_table", {}, "few_ratings"),
    "recommendation": ("recommendation", {}, "few_ratings"),
    "recommendation_one": (
        "recommendation",
        {"seeds": [0], "rows": ["Popularity", "PFedRec"]},
        "few_ratings",
    ),
}
_PICTURES = {
    "figure2": ["figure2.png"],
    "figure3": ["figure3.png"],
    "table3": [
        "generated_subreddits/learning_curves.png",
        "generated_subreddits/user_embeddings.png",
    ],
    "fedperc_tables": ["fedperc_tables.png"],
    "dp_table": ["dp_table.png"],
}


def report_of(patch, case, folder, ratings):
    """Returns the report of a case, whose jobs are stubs, and its data's name by file."""
    target, asked, data = CASES[case]
    module, function, task = TARGETS[target]
    module = importlib.import_module(f"fedpersonal.suite.papers.{module}")
    stub(
        patch,
        folder,
        [m for n, m in sys.modules.items() if n.startswith("fedpersonal.suite.papers")],
    )
    option = "interactions_file" if task.name == "interactions" else "ratings_file"
    given = {option: ratings} if data else {}
    asked = {"seeds": [0, 1], **asked, "options": {**given, **asked.get("options", {})}}
    return getattr(module, function)(Reproduction(folder, **asked))


def assert_same_rows(written, expected):
    """Compares CSV; the last digits of a mean depend on the processor."""
    rows = [list(csv.reader(text.splitlines())) for text in (written, expected)]
    assert [len(row) for row in rows[0]] == [len(row) for row in rows[1]]
    for cell, kept in zip(*(itertools.chain(*of) for of in rows)):
        assert cell == kept or float(cell) == pytest.approx(float(kept), rel=1e-9)


@pytest.mark.exhaustive(but=("table1", "fedperc_parts", "dp_table"))
@pytest.mark.parametrize("case", CASES)
def test_a_page_is_the_one_that_is_kept(case, tmp_path, monkeypatch, request):
    data = CASES[case][2]
    report = report_of(monkeypatch, case, tmp_path, data and request.getfixturevalue(data))
    page = report.write(tmp_path)
    assert page + "\n" == (GOLDEN / f"{case}.md").read_text(encoding="utf-8")
    written = (tmp_path / f"{report.name}.csv").read_text(encoding="utf-8")
    assert_same_rows(written, (GOLDEN / f"{case}.csv").read_text(encoding="utf-8"))
    tables = json.loads((tmp_path / f"{report.name}.json").read_text())["tables"]
    assert {*tables} == {line.partition(",")[0] for line in written.splitlines()[1:]}
    for picture in _PICTURES.get(case, ()):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_the_page_of_an_ablation_is_the_one_that_is_kept(few_ratings, tmp_path, monkeypatch):
    stub(monkeypatch, tmp_path, [])
    sets = [("user_embedding",), ("absent",), ("item_embedding", "user_embedding")]
    given = {"ratings_file": few_ratings, "embedding_dim": 2}
    page = ablation.Ablation(RATINGS, given, sets, [3, 4], tmp_path).run().write(tmp_path)
    assert page + "\n" == (GOLDEN / "ablation.md").read_text(encoding="utf-8")


def test_a_column_of_an_ablation_names_the_clients_that_are_tested(
    few_ratings, tmp_path, monkeypatch
):
    """Clients of interactions are tested on their own last items: all are seen."""
    stub(monkeypatch, tmp_path, [])
    given = {"interactions_file": few_ratings, "embedding_dim": 2}
    page = ablation.Ablation(INTERACTIONS, given, [("score",)], [3], tmp_path).run().write(tmp_path)
    (heads,) = (line for line in page.splitlines() if "kB down" in line)
    assert ", seen" in heads and "unseen" not in heads


def test_every_target_has_a_page():
    assert {target for target, *_ in CASES.values()} == {*TARGETS}


@pytest.mark.parametrize(
    ("target", "rows"),
    [
        ("table1", fedrecon_data.RATING_ROWS),
        ("table2", (*fedrecon_data.WORD_ROWS, *fedrecon_data.CONTROLS)),
        ("table3", furl.ROWS),
        ("fedperc_tables", fedperc_data.TABLE_ROWS),
        ("fedperc_parts", fedperc_data.PART_ROWS),
        ("dp_table", privacy.ROWS),
        ("recommendation", recommendations.ROWS),
    ],
)
def test_rows_can_be_asked_for_and_have_options_that_there_are(target, rows):
    task = TARGETS[target][2]
    names = [row.name for row in rows]
    assert len({*names}) == len(names)
    # As `--rows` is parted.
    assert choose_rows(rows, ",".join(names).split(","), table=target) == list(rows)
    with pytest.raises(
        UserError, match=f"--rows: 'Nobody' is no row of {target}; the nearest of its "
    ):
        choose_rows(rows, [names[0], "Nobody"], table=target)
    for row in rows:
        for preset in ("quick", "paper"):
            asked = Reproduction("nowhere", preset=preset)
            name = row.preset.replace("{kind}", "reddit")
            options = task.options(**asked.values(task, name, **row.values))
            method = task.method(task.with_defaults(options))
            if method.is_federated and method.trains:
                assert options.shuffle == "never"


def test_rows_have_no_comma():
    with pytest.raises(ValueError, match="has no comma"):
        Row("a, b", "movielens_paper", {})


def test_every_method_that_can_have_a_row_has_one():
    rows = {row.values["method"] for row in fedperc_data.PART_ROWS}
    assert {method.name for method in FEDERATED if method.parts} <= rows
    names = {row.name for row in fedperc_data.PART_ROWS}
    assert names.issuperset({*fedperc_data.SHARED, *fedperc_data.SHARED.values()})
    twins = {"FedRep", "FedRep (stateless)", "Global FL", "Personalized FL (stateless)"}
    assert twins < {row.name for row in furl.ROWS}
    # What keeps nothing has no stateless twin.
    assert not {"Global FL (stateless)", "Personalized Server (stateless)"} & {
        row.name for row in furl.ROWS
    }


def test_presets_chosen_without_privacy_differ_by_what_it_demands_alone():
    for preset in (privacy.PAPER, privacy.BEST):
        row = privacy.AT[preset][8]
        of_privacy = {"dp_target_epsilon", "dp_clipping", "dp_noise", "weighting"}
        of_privacy |= {"client_sampling", "total_rounds"}
        assert row.preset == preset and {*row.values} <= of_privacy


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["auto", "movielens_100k"]),
        ({"data_dir": "1m"}, ["auto", "movielens_1m"]),
        ({"data_dir": "other"}, ["auto", "movielens_100k"]),
        ({"dataset": "movielens_1m", "data_dir": "1m"}, ["movielens_1m"]),
        ({"text_file": "own.csv"}, ["auto"]),
    ],
)
def test_furl_has_both_forms_unless_one_is_named(tmp_path, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("1m", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "1m" / "movies.dat").touch()
    requests = furl.requests_of(Reproduction(tmp_path, options=given))
    assert [one.dataset for one in requests] == expected


def test_layer_sets():
    assert ablation.layer_sets(None) is None
    assert ablation.layer_sets("a, b;c;c") == [("a", "b"), ("c",)]
    with pytest.raises(UserError, match="a set has no layer"):
        ablation.layer_sets("a;;b")


def _write() -> None:
    import tempfile

    from tests.suite.papers import conftest

    class Factory:
        mktemp = staticmethod(lambda _: pathlib.Path(tempfile.mkdtemp()))

    timed = conftest.few_ratings.__wrapped__(Factory)
    data = {"few_ratings": timed}
    data["timeless_ratings"] = conftest.timeless_ratings.__wrapped__(timed, Factory)
    for case in sys.argv[1:] or CASES:
        folder = Factory.mktemp(case)
        with pytest.MonkeyPatch.context() as patch:
            report = report_of(patch, case, folder, data.get(CASES[case][2]))
            report.write(folder)
        for end in ("md", "csv"):
            text = (folder / f"{report.name}.{end}").read_text(encoding="utf-8")
            (GOLDEN / f"{case}.{end}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
