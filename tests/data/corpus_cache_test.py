"""A cached corpus is the one that was read, and is never one of another file or setting."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.data import sentences as corpus_files
from fedpersonal.data import sentences as splitting
from fedpersonal.data.sentences import read_text
from fedpersonal.errors import UserError

_FIELDS = ("client_ids", "client_offsets", "sentence_offsets", "words", "lexicon")


def _write(path, *texts):
    records = [{"user": "ünì", "text": text} for text in ("Über. 東京!", *texts)]
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, {"user": "x"}]))
    return path


@pytest.fixture
def readings(monkeypatch):
    """The paths of files that were read, and not taken from the cache."""
    read, paths = corpus_files._read, []
    monkeypatch.setattr(
        corpus_files, "_read", lambda path, *options: paths.append(path) or read(path, *options)
    )
    return paths


def _check_equal(corpus, expected):
    for field in _FIELDS:
        value, other = getattr(corpus, field), getattr(expected, field)
        assert value.dtype == other.dtype
        np.testing.assert_array_equal(value, other)
    assert (corpus.name, corpus.report) == (expected.name, expected.report)


def test_read_once(tmp_path, readings):
    path = _write(tmp_path / "a.jsonl")
    expected = read_text(path)
    cache = tmp_path / "new" / "cache"
    for _ in range(3):
        _check_equal(read_text(path, cache_dir=cache), expected)
    assert len(readings) == 2
    assert list(expected.report) == ["lines left out: no 'text'"]
    (file,) = cache.iterdir()
    with np.load(file, allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)


def test_another_content_or_setting_is_another_corpus(tmp_path, readings, monkeypatch):
    path = _write(tmp_path / "a.jsonl")

    def read(**options):
        return read_text(path, cache_dir=tmp_path / "cache", **options)

    read()
    for options in (
        {"min_sentences": 1},
        {"max_sentences": 2},
        {"time_column": None},
    ):
        before = len(readings)
        _check_equal(read(**options), read_text(path, **options))
        read(**options)
        assert len(readings) == before + 2
    before = len(readings)
    monkeypatch.setattr(splitting, "WORD", "another")
    read()
    _write(path, "more")
    assert "more" in read().lexicon
    assert len(readings) == before + 2


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path):
    path = _write(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match="a.jsonl: cannot be written: "):
        read_text(path, cache_dir=path)
    with pytest.raises(UserError, match="absent.jsonl: no such file"):
        read_text(tmp_path / "absent.jsonl", cache_dir=tmp_path)
