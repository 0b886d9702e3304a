"""README and docs/ are true: their code runs, their commands parse, their links lead somewhere.

A block of code says what it is. `python` blocks of a page are run, one after another, in a folder
of their own, each after the program of a comment `<!-- first ... -->` above it. Commands of `sh`
blocks are taken apart, and their targets, modules and flags looked up. `text` is what a program
prints.
"""

from __future__ import annotations

import ast
import json
import pathlib
import re

import pytest

from build_tools import notebook
from fedpersonal.methods import method as method_module
from tests.pages import (
    DOCS,
    FOREIGN_FLAGS,
    ROOT,
    faults_of_commands,
    faults_of_links,
    faults_of_names,
    read,
)

PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "SECURITY"))]
)
LANGUAGES = {"python", "sh", "text"}
# What runs a program that a page shows.
RUN_BY = ("tests/examples_test.py", "tests/runtime/ray_test.py")
SHOWN = re.compile(r'--8<-- "(.*)"')
BLOCKS = {page: read(page.read_text(encoding="utf-8")) for page in PAGES}


@pytest.fixture(name="known_flags", scope="module")
def _known_flags():
    from fedpersonal.suite.tasks.find import all_tasks

    found = {*FOREIGN_FLAGS, "flagfile", "help", "helpfull"}
    for task in all_tasks().values():
        found.update(option.name for option in task.options.declarations().values())
    for path in [*(ROOT / "fedpersonal/suite").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'DEFINE_\w+\(\s*"(\w+)"', text))
        found.update(re.findall(r'add_argument\(\s*"--(\w+)"', text))
    return found


def of_root(page):
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=of_root)
def test_every_block_says_what_it_is(page):
    unknown = [(b.line, b.language) for b in BLOCKS[page][0] if b.language not in LANGUAGES]
    assert not unknown, f"{page}: begin a block by ```python, ```sh or ```text"


@pytest.mark.exhaustive(
    but=(
        "docs/start/ten_minutes.md",
        "README.md",
        "docs/how_to/resume.md",
        "docs/how_to/read_a_report.md",
    )
)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.language == "python" for b in BLOCKS[p][0])], ids=of_root
)
def test_python_runs(page, tmp_path, monkeypatch, capfd):
    import fedpersonal as fp

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(method_module, "_registered", {})  # A page may register its own.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    names = {"fp": fp, "__name__": "page"}
    outputs = []
    for block in BLOCKS[page][0]:
        shown = SHOWN.fullmatch(block.text)
        if block.language != "python":
            continue
        if shown:
            assert (ROOT / shown[1]).is_file()
            tests = "".join((ROOT / path).read_text(encoding="utf-8") for path in RUN_BY)
            folder, name = pathlib.Path(shown[1]).parts[-2:]
            assert (folder if folder != "examples" else name[: -len(".py")]) in tests
        else:
            for text in (block.first, block.text):
                capfd.readouterr()
                _run(text, f"{page}:{block.line}", names)
            outputs.append(capfd.readouterr().out)
    if page == notebook.PAGE:
        kept = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))
        cells = notebook.notebook(page.read_text(encoding="utf-8"))
        code = [cell for cell in cells["cells"] if cell["cell_type"] == "code"]
        for cell, shown in zip(code, outputs):
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": shown}]
        assert len(code) == len(outputs) and not notebook.is_news(cells, kept), "make notebook"


def _run(text, place, names):
    """Runs a cell and prints its value."""
    tree = ast.parse(text, place)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), place, "eval"), names)
        print("" if value is None else repr(value))


def test_a_notebook_is_old_where_text_or_numbers_differ():
    cells = notebook.notebook("# Title\n\n```python\n1 + 1\n```\n")
    assert [cell["cell_type"] for cell in cells["cells"]] == ["markdown", "code"]
    assert "".join(cells["cells"][1]["source"]) == "1 + 1"
    assert not notebook.is_news(cells, cells)
    assert notebook.is_news(cells, notebook.notebook("# Title\n\n```python\n1 + 2\n```\n"))
    assert notebook.agree("a   0.912\n", "a 0.915") and not notebook.agree("a 0.912", "b 0.912")
    assert not notebook.agree("a 0.912", "a 0.95") and not notebook.agree("1 2", "1")


def test_commands_are_those_of_our_programs():
    assert faults_of_commands(BLOCKS) == []


@pytest.mark.parametrize("page", PAGES, ids=of_root)
def test_links_lead_somewhere(page):
    assert list(faults_of_links(page, BLOCKS[page][1])) == []


@pytest.mark.parametrize("page", PAGES, ids=of_root)
def test_what_prose_names_is_there(page, known_flags):
    assert list(faults_of_names(BLOCKS[page][1], known_flags)) == []


def test_every_public_name_has_its_place_in_the_reference():
    import fedpersonal as fp

    pages = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "reference/api").glob("*.md"))
    told = re.findall(r"^::: fedpersonal\.(\w+)$", pages, re.MULTILINE)
    assert sorted(told) == sorted(set(fp.__all__) - {"__version__"})


def test_the_comparison_counts_our_papers_and_lines():
    import fedpersonal.methods as methods

    page = (DOCS / "explanation" / "comparison.md").read_text(encoding="utf-8")
    ((papers, listed),) = re.findall(r"^\| fedpersonal \| (\d+) \| (.*?) \| \[", page, re.MULTILINE)
    assert int(papers) == listed.count("](../methods/")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| fedpersonal \|.*$", readme, re.MULTILINE)
    assert f" {papers} " in row
    words = " ".join(readme.split())

    counted = re.findall(r"^\| \[.*?\]\(\.\./methods/(\w+)\.md\) \| (\d+) \|", page, re.MULTILINE)
    found = {
        name: re.findall(r"^ *[^\s#]", (path / f"{name}.py").read_text("utf-8"), re.MULTILINE)
        for name, _ in counted
        for path in map(pathlib.Path, methods.__path__)
    }
    assert len(counted) == 10 and f"APFL takes {dict(counted)['apfl']} lines" in words
    assert {name: len(lines) for name, lines in found.items()} == {n: int(c) for n, c in counted}


def test_the_first_screen_says_what_other_pages_say():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"\*\*([\d.,]+)(?: %)?\*\* \| ([\d.,]+).*\]\((.*?)#", page)
    assert len(rows) == 4
    for *figures, name in rows:
        said = (DOCS / name).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{re.escape(figure)}\b", said) for figure in figures), name
    words = re.findall(r"\*\*(.*?)\*\*", page.split("## Key terms")[1])
    glossary = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    assert len(words) == 7 and all(word.lower() in glossary.lower() for word in words)
    comparison = (DOCS / "explanation" / "comparison.md").read_text(encoding="utf-8")
    (papers,) = re.findall(r"methods of (\d+)\s+papers", page)
    assert f"| fedpersonal | {papers} |" in comparison


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("make nothing", "make has no target nothing"),
        ("make movielens TEXTFILE=a", "make knows no TEXTFILE"),
        ('make movielens FLAGS="--rank=3"', "Unknown command line flag 'rank'"),
        ("python -m experiments.films", "there is no experiments.films"),
        ("python -m experiments.movielens --seed=one", "flag --seed"),
        ("python examples/none.py", "there is no examples/none.py"),
        ("bazel run //experiments:none", "there is no target"),
        ("curl address", "what is curl?"),
    ],
)
def test_a_wrong_command_is_found(line, fault):
    page = read(f"# Title\n\n```sh\n{line}\n```\n")
    (found,) = faults_of_commands({"page.md": page})
    assert fault in found and found.startswith("page.md:3")


def test_a_wrong_link_or_name_is_found(known_flags):
    page = DOCS / "index.md"
    prose = (
        "[a](none.md) [b](start/ten_minutes.md#none) [c](../README.md) [d](start/ten_minutes.md)"
    )
    found = list(faults_of_links(page, prose))
    assert [fault.split(": ")[2] for fault in found] == [
        "there is no such file",
        "it has no such heading",
        "it is outside of docs/, and not in the site",
    ]
    wrong = (
        "`make none` `python -m experiments.none` `--none_of_ours`, not `make test` or `--seed=1`"
    )
    assert len(list(faults_of_names(wrong, known_flags))) == 3
    blocks, _ = read("text\n\n    make test\n\n- item\n\n      more\n\n```\nno language\n```\n")
    assert [(b.language, b.text) for b in blocks] == [("sh", "make test"), ("", "no language")]
