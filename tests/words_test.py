"""Code and docs use the field's terms: words that a reader has to translate are refused."""

from __future__ import annotations

import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CODE = ("fedpersonal", "experiments", "benchmarks", "examples", "build_tools", "scripts")

# Names that say nothing of what they hold, and parts of names that are coinages.
NAMES = {
    **dict.fromkeys(("own", "found", "known", "given", "some", "many", "so"), "a noun"),
    **dict.fromkeys(("said", "asked", "wanted", "who", "whose", "whom"), "a noun"),
}
PARTS = {
    "own": "local, per_client, personal_copy, its",
    "told": "reported, informed",
    "tell": "report",
    "tells": "reports",
    "beside": "next_to, with",
    "guess": "baseline",
    "guesses": "baselines",
    "guessed": "baseline",
    "settle": "merge, with_defaults",
    "settled": "merged, complete",
    "nobody": "none",
    "whoever": "who",
    "drawn": "sampled",
    "withheld": "held_out",
    "hurt": "worse",
}
# Words of texts, as regular expressions, and what to say instead.
TEXTS = {
    r"told": "reported",
    r"tells?": "reports, shows, says",
    r"beside": "next to, besides, compared with",
    r"guess(es|ed)?": "baseline",
    r"settl(e|es|ed|ing)": "decide, merge",
    r"nobody": "no one, no client",
    r"whoever": "those who",
    r"worse off|hurts?": "worse after personalisation",
    r"drawn": "sampled",
    r"so many": "the number of",
    r"go(es)? on": "resume, continue",
    r"all together": "pooled over examples",
    r"withheld": "held out",
    r"stands? (for|beside)|come(s)? to": "represents, equals",
    r"what nobody trains|what is (local|worse)": "a noun",
}
# File, word, and the reason why the word is right there.
_SUITE = "fedpersonal/suite"
RIGHT: dict[tuple[str, str], str] = {
    ("fedpersonal/data/rows.py", "tell"): "a method of files",
    ("fedpersonal/former.py", "beside"): "a former flag",
    ("fedpersonal/audit/audit.py", "found"): "a former attribute",
    ("fedpersonal/methods/method.py", "own"): "a former attribute",
    ("fedpersonal/evaluation/results.py", "some"): "a former attribute",
    (f"{_SUITE}/tasks/task.py", "settle"): "a former method",
    (f"{_SUITE}/tasks/task.py", "guesses"): "a former method",
    ("fedpersonal/evaluation/results.py", "guess"): "a former attribute",
    ("fedpersonal/training/trained.py", "guess"): "a former argument",
    ("fedpersonal/report/comparison.py", "guess"): "a column of `compare.csv`",
    ("fedpersonal/report/comparison_page.py", "guess"): "a column of `compare.csv`",
    (f"{_SUITE}/leaderboard/table.py", "guess"): "a kind of row in `leaderboard.json`",
    ("fedpersonal/report/samples.py", "guess"): "a key of `recommendations.json`",
    ("fedpersonal/report/page.py", "guess"): "a key of `recommendations.json`",
    ("fedpersonal/training/tested.py", "guess"): "a name in `summary.json`",
    ("docs/results/leaderboard_full.md", "drawn"): "the message of a finished run",
    ("examples/own_binary.py", "own"): "the name of a module",
    **{
        (file, "guesses"): "a key of `summary.json`"
        for file in (
            "docs/reference/run_folder.md",
            "fedpersonal/evaluation/baselines.py",
            "fedpersonal/report/page.py",
            "fedpersonal/report/run.py",
            "fedpersonal/training/tested.py",
            f"{_SUITE}/leaderboard/table.py",
            f"{_SUITE}/papers/ablation.py",
            f"{_SUITE}/papers/furl.py",
            f"{_SUITE}/papers/privacy.py",
            f"{_SUITE}/sweeps/sweep.py",
            f"{_SUITE}/sweeps/trials.py",
            f"{_SUITE}/tasks/figures.py",
            f"{_SUITE}/tasks/running.py",
            f"{_SUITE}/tasks/utterances/task.py",
        )
    },
}


def words_of_names(path: pathlib.Path):
    """Yields the banned names of a file, and their lines."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    for token in tokens:
        if token.type == tokenize.NAME:
            name = token.string.lower().strip("_")
            parts = set(name.split("_")) & PARTS.keys()
            yield from ((word, token.start[0]) for word in parts)
            if name in NAMES.keys() - parts:
                yield name, token.start[0]


def texts_of(path: pathlib.Path):
    """Yields the comments and strings of a file, or its lines if it is no Python, and lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from ((line, number) for number, line in enumerate(text.splitlines(), start=1))
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            yield token.string, token.start[0]


def words_of_texts(path: pathlib.Path):
    """Yields the banned words of a file's texts, and their lines."""
    pattern = re.compile("|".join(rf"(?P<w{i}>\b(?:{word})\b)" for i, word in enumerate(TEXTS)))
    for text, line in texts_of(path):
        for match in pattern.finditer(text):
            yield match[0], line + text[: match.start()].count("\n")


def advice(word: str) -> str:
    """Returns what to say instead of a word."""
    words = {**NAMES, **PARTS}
    return words.get(word) or next(v for k, v in TEXTS.items() if re.fullmatch(k, word))


def files(kind: str) -> list[pathlib.Path]:
    """Returns the files of code, or those of docs, that people write."""
    if kind == "code":
        return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    return sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"})


@pytest.mark.parametrize("kind", ["code", "docs"])
def test_no_word_has_to_be_translated(kind):
    places = []
    for path in files(kind):
        file = path.relative_to(ROOT).as_posix()
        words = [*words_of_texts(path), *(words_of_names(path) if kind == "code" else ())]
        for word, line in words:
            if (file, word) not in RIGHT:
                places.append(f"{file}:{line}: {word}; say {advice(word)}")
    assert not places, "\n".join(["", *places])


def test_each_exception_is_needed():
    for file, word in RIGHT:
        path = ROOT / file
        names = words_of_names(path) if path.suffix == ".py" else ()
        words = {w for w, _ in (*words_of_texts(path), *names)}
        assert word in words, (file, word)
