"""The presets of binaries are those of tables and figures."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from experiments.papers.fedperc import presets as utterance_presets
from experiments.papers.fedrecon import next_word_presets
from experiments.papers.furl import presets as document_presets

FILES = pathlib.Path(__file__).parents[2] / "experiments" / "presets"
PRESETS = {
    "stackoverflow_quick": next_word_presets.QUICK,
    "stackoverflow_paper": next_word_presets.PAPER,
    "reddit_quick": document_presets.QUICK,
    "reddit_paper": document_presets.PAPER,
    "tv_shows_quick": utterance_presets.QUICK,
    "tv_shows_paper": utterance_presets.PAPER,
}
# What the binaries take by a flag of the data, or tables by an option of their own.
_NOT_COMPARED = {"algorithm", "seed", "vocab_size", "num_oov_buckets", "text_length"}


def read_flags(name):
    lines = (FILES / f"{name}.flags").read_text(encoding="utf-8").splitlines()
    pairs = [line[2:].partition("=") for line in lines if line.startswith("--")]
    return {flag: value for flag, _, value in pairs}


@pytest.mark.parametrize("name", PRESETS)
def test_flags_and_options_say_the_same(name):
    flags, preset = read_flags(name), PRESETS[name]
    algorithm = flags.get("algorithm", preset.options.algorithm)
    options = preset.options_of(algorithm)
    fields = {f.name: f for f in dataclasses.fields(options) if f.name not in _NOT_COMPARED}
    defaults = type(options)(algorithm=algorithm)
    for field in fields:
        value, default = getattr(options, field), getattr(defaults, field)
        if field in flags:
            assert type(value)(flags[field]) == value, field
        elif default is not None:
            assert value == default, field
