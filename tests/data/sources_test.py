"""Where data are found, and what is said of those that are not."""

from __future__ import annotations

import pytest

from fedpersonal.data.sources import FILE, Sources, find_source
from fedpersonal.errors import UserError

SOURCES = Sources(
    holding="sounds",
    datasets=("made_up", "birds", "frogs", "hub"),
    default="made_up",
    files={"birds": ("birds.csv.gz", "birds.csv"), "frogs": ("frogs.csv",), FILE: ("any.csv",)},
    folders=("hub",),
    only_by_name=("frogs",),
    file_flag="sound_file",
    advice="listen",
)


def _find(dataset="auto", file=None, data_dir=None):
    return find_source(SOURCES, dataset=dataset, file=file, data_dir=data_dir)


def test_what_auto_means(tmp_path):
    folder = str(tmp_path)
    assert _find() == ("made_up", None)
    assert _find(file="own.csv", data_dir=folder) == ("file", "own.csv")
    (tmp_path / "frogs.csv").touch()
    with pytest.raises(UserError) as caught:
        _find(data_dir=folder)
    said = "has no birds.csv.gz or any.csv; name a table of your own by --sound_file, or listen."
    assert str(caught.value) == f"{folder} {said}"
    (tmp_path / "any.csv").touch()
    assert _find(data_dir=folder) == ("file", str(tmp_path / "any.csv"))
    (tmp_path / "birds.csv").touch()
    assert _find(data_dir=folder) == ("birds", str(tmp_path / "birds.csv"))
    (tmp_path / "birds.csv.gz").touch()
    assert _find(data_dir=folder) == ("birds", str(tmp_path / "birds.csv.gz"))


def test_datasets_by_name(tmp_path):
    folder = str(tmp_path)
    assert SOURCES.choices == ("auto", "made_up", "birds", "frogs", "hub")
    assert _find("made_up", data_dir=folder) == ("made_up", None)
    assert _find("hub") == ("hub", None)
    assert _find("hub", data_dir=folder) == ("hub", folder)
    with pytest.raises(UserError, match="--dataset=frogs needs --data_dir, a folder with frogs"):
        _find("frogs")
    with pytest.raises(UserError, match="has no frogs.csv; name a table of your own"):
        _find("frogs", data_dir=folder)
    (tmp_path / "frogs.csv").touch()
    assert _find("frogs", data_dir=folder) == ("frogs", str(tmp_path / "frogs.csv"))


def test_a_folder_that_is_a_dataset_needs_a_file_for_auto_only(tmp_path):
    lazy = Sources(
        holding="words", datasets=("a", "b"), default="a", files={"b": ("b.db",)}, folders=("b",)
    )
    options = {"file": None, "data_dir": str(tmp_path)}
    assert find_source(lazy, dataset="b", **options) == ("b", str(tmp_path))
    with pytest.raises(UserError, match="has no b.db; .* --text_file, or use --dataset=generated"):
        find_source(lazy, dataset="auto", **options)
    (tmp_path / "b.db").touch()
    assert find_source(lazy, dataset="auto", **options) == ("b", str(tmp_path))


def test_mistakes_are_named():
    with pytest.raises(UserError, match="--dataset=fish has no sounds; these have: auto, made_up"):
        _find("fish")
    with pytest.raises(UserError, match="--sound_file and --dataset=birds exclude each other"):
        _find("birds", file="own.csv")
