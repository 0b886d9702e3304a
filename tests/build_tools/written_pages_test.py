"""Pages that are written by programs say what options and methods are."""

from __future__ import annotations

import json
import re
import statistics

import pytest

from build_tools import methods_pages, options_page, results_page
from fedpersonal.suite.tasks.find import all_tasks

TABLES = json.loads((results_page.FOLDER / "tables.json").read_text(encoding="utf-8"))


def test_the_page_of_options_is_up_to_date():
    written = options_page.PAGE.read_text(encoding="utf-8")
    assert written == options_page.page(), "run python -m build_tools.options_page"


def test_the_pages_of_methods_are_up_to_date():
    written = {p.name: p.read_text(encoding="utf-8") for p in methods_pages.FOLDER.glob("*.md")}
    assert written == methods_pages.pages(), "run python -m build_tools.methods_pages"
    types = methods_pages.STUB.read_text(encoding="utf-8")
    assert types == methods_pages.signatures(), "run python -m build_tools.methods_pages"


def test_the_page_of_results_is_up_to_date():
    written = results_page.PAGE.read_text(encoding="utf-8")
    assert written == results_page.page(), "run python -m build_tools.results_page"


def test_a_row_of_results_stands_beside_its_best_guess():
    """Its cells are the numbers of the JSON beside the page, rounded."""
    cells = json.loads((results_page.FOLDER / "table1.json").read_text(encoding="utf-8"))
    cells = cells["tables"]["unseen"]
    means = {name: statistics.mean(row["RMSE"]["values"]) for name, row in cells.items()}
    guess = min(mean for name, mean in means.items() if name.startswith("Baseline"))
    row = rf"^\| FedRecon \| 0\.907 \| {means['FedRecon']:.3f} ± .* \| {guess:.3f} ± "
    assert re.search(row, results_page.page(), re.MULTILINE)


# Figures of these pages that no JSON has: the page of results says so.
WITHOUT_JSON = {
    "fedrecon": set(),
    "fedperc": set(),
    "pfedrec": set(),
    # 58.1 ± 0.6 has none either, but the table of another task happens to have these digits.
    "furl": {"57.9 ± 0.7", "50.5 ± 1.5", "19.4 ± 0.6", "19.1 ± 2.0"},
    "movielens": {"0.868 ± 0.011", "44.9 ± 0.6", "0.874 ± 0.011", "1.36 ± 0.53"},
}


@pytest.mark.parametrize("name", WITHOUT_JSON)
def test_a_page_has_the_digits_of_the_tables(name):
    page = (results_page.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    said = re.findall(r"(?<![\w+-])(\d*\.?\d+) ± (\d*\.?\d+)", page)
    measured = set()
    for path in {results_page.FOLDER / f"{one['source']}.json" for one in TABLES}:
        for table in json.loads(path.read_text(encoding="utf-8"))["tables"].values():
            for cell in (cell for row in table.values() for cell in row.values()):
                values, sd = cell["values"], cell["deviation"]
                if len(values) > 1 and not isinstance(values[0], str):
                    sd = statistics.stdev(values) if sd is None else sd
                    mean = statistics.mean(values)
                    measured |= {f"{mean:.{n}f} ± {sd:.{n}f}" for n in range(4)}
                elif sd is not None:
                    measured |= {f"{values[0]:.{n}f} ± {sd:.{n}f}" for n in range(4)}
    zeros = {re.sub(r"(?<!\d)\.", "0.", f"{mean} ± {sd}") for mean, sd in said}
    assert zeros - measured == WITHOUT_JSON[name]


def cell(source, table, row, column, digits=1):
    """Returns a figure of a table's JSON as prose has it, without a zero before the point."""
    tables = json.loads((results_page.FOLDER / f"{source}.json").read_text("utf-8"))["tables"]
    mean = statistics.mean(tables[table][row][column]["values"])
    return f"{abs(mean):.{digits}f}".removeprefix("0")


def rmse(row, table="unseen"):
    return cell("table1", table, row, "RMSE", 3)


def comments(row):
    return cell("table3", "reddit_comments_seen", row, "Accuracy %")


def films(row):
    return cell("table3", "movielens-1m-films_seen", row, "AUC %")


def lower(users, rival):
    row = f"FedPerC than {rival}"
    return cell("fedperc_tables", f"tv_shows_{users}_lower_by", row, "all")


def parts(row):
    return cell("fedperc_parts", "perplexity", row, "perplexity")


def hits(row, table="fair"):
    return cell("recommendation_1m", table, row, "HR@10")


RECON, TUNED, SHRUNKEN = (
    "FedRecon",
    "FedAvg + fine-tuning",
    "Baseline: shrunken means of item and user",
)
FL, SERVER = "Personalized FL", "Personalized Server"
LORA, ADDED = "LoRA + personal bias (all matrices)", "Shared prefix"
# What a page says, and the figures in its places.
SAID = {
    "README.md": [
        ("holds: {}; but FedAvg with fine-tuning reaches {} at", rmse(RECON), rmse(TUNED)),
        ("shrunken means of item and user {}", rmse(SHRUNKEN)),
        ("nearly holds: {} and {} % on comments", comments(FL), comments(SERVER)),
        ("a user's most frequent label: {})", comments("A user's most frequent label")),
        ("an AUC of {} and {} on films", films(FL), films(SERVER)),
        ("holds: {} and {} %", comments(FL), comments("Global FL")),
        ("%, {} and {}; but on comments", films(FL), films("Global FL")),
        ("local training reaches {} %", comments("Local training")),
        ("fine-tuning {}, and shrunken rates", films(TUNED)),
        ("rates of film and user {}", films("Regularised rates of text and user")),
        ("holds: {}; the frozen model alone reaches {}", parts("FedPerC"), parts("Base model")),
        ("a shared embedding {};", parts(ADDED)),
        ("in place of 8, reaches {}", parts(LORA)),
        ("{} % of hits on MovieLens-1M, FedMF {}", hits("PFedRec"), hits("FedMF")),
        ("FedRecon {}, popularity {};", hits(RECON), hits("Popularity")),
        (
            "it does: {}, {} and {}",
            *(hits(n, "leaky_negatives") for n in ("PFedRec", "FedMF", RECON)),
        ),
    ],
    "docs/results/fedrecon.md": [
        ("RMSE .907 | holds: {} ±", rmse(RECON)),
        ("does not hold: {} and {};", rmse("FedAvg + ReconEval"), rmse("Centralized + ReconEval")),
        ("FedAvg with fine-tuning is ahead, {} (at", rmse(TUNED)),
    ],
    "docs/results/furl.md": [
        ("nearly holds: {} and {} % on comments", comments(FL), comments(SERVER)),
        ("an AUC of {} and {} on films", films(FL), films(SERVER)),
        (
            "holds: {} and {} %, {} and {}.",
            *map(comments, (FL, "Global FL")),
            *map(films, (FL, "Global FL")),
        ),
        ("on films FedAvg with fine-tuning {}", films(TUNED)),
    ],
    "docs/results/fedperc.md": [
        (
            "{} and {} % lower on unseen users;",
            lower("unseen", "Split-Learning"),
            lower("unseen", "Meta-Learning"),
        ),
        ("on seen ones {} % below Split-Learning", lower("seen", "Split-Learning")),
        ("and {} % below Meta-Learning,", lower("seen", "Meta-Learning")),
        (
            "users by {} and {} %,",
            lower("unseen", "Split-Learning"),
            lower("unseen", "Meta-Learning"),
        ),
        (
            "{} where the base alone has {} and a shared prefix {};",
            *map(parts, ("FedPerC", "Base model", ADDED)),
        ),
        ("a personal bias reaches {},", parts(LORA)),
    ],
}


@pytest.mark.parametrize("page", SAID)
def test_figures_in_prose_are_those_of_the_tables(page):
    text = (results_page.FOLDER.parents[1] / page).read_text(encoding="utf-8")
    text = re.sub(r"(?<!\d)0\.", ".", " ".join(text.split()))
    missing = [said.format(*figures) for said, *figures in SAID[page]]
    missing = [said for said in missing if " ".join(said.split()) not in text]
    assert not missing, f"{page} says something else"


def test_every_method_of_every_task_has_its_section():
    text = "\n".join(path.read_text(encoding="utf-8") for path in methods_pages.FOLDER.glob("*.md"))
    sections = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    names = {name for task in all_tasks().values() for name in task.methods}
    assert len(names) > 40 and names <= {*sections}
    assert all(sections.count(name) == 1 for name in names)
