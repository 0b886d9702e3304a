"""Generated texts are kept in a run's folder, and shown to whom asks for clients."""

import pytest

from fedpersonal.errors import UserError
from fedpersonal.report.run_data import read_run
from fedpersonal.report.texts import GENERATED, Row, add_texts, texts_told
from fedpersonal.report.write import report_page


def test_texts_stand_side_by_side(tmp_path):
    add_texts(tmp_path, "Ann", "harbour", "We", ["We go"], rounds=20)
    add_texts(tmp_path, "Bob", "harbour", "We", ["We stay", "We sail"], rounds=20)
    add_texts(tmp_path, "Bob", "court", "We", ["We rise"], rounds=20)
    add_texts(tmp_path, "Ann", "harbour", "We", ["We came"], rounds=20)
    told = texts_told(tmp_path)
    assert told.clients == ["Bob", "Ann"]
    assert told.rows == [
        Row("harbour", "We", [["We stay", "We sail"], ["We came"]]),
        Row("court", "We", [["We rise"], []]),
    ]


def test_texts_are_shown_on_demand(tmp_path, make_run):
    path = make_run(tmp_path)
    assert "Generated texts" not in report_page(read_run(path))
    add_texts(path, "Ann", "harbour", "<b>", ["<script>secret</script>", "x" * 10_000], rounds=20)
    page = report_page(read_run(path))
    assert "as 1 of its clients would write" in page
    assert "secret" not in page and "Ann" not in page
    page = report_page(read_run(path), show_clients=True)
    assert "&lt;script&gt;secret&lt;/script&gt;" in page
    assert "x" * 400 + "…" in page and "x" * 401 not in page


def test_texts_of_an_older_model_are_left_out(tmp_path, make_run):
    """A run went on after they were written: neither its page nor its file has them."""
    path = make_run(tmp_path)
    add_texts(path, "Ann", "harbour", "We", ["We went"], rounds=10)
    assert "We went" not in report_page(read_run(path), show_clients=True)
    add_texts(path, "Bob", "harbour", "We", ["We go"], rounds=20)
    assert "We go" in report_page(read_run(path), show_clients=True)
    assert "We went" not in (path / GENERATED).read_text()


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"client": "a"}]', "nonsense"])
def test_damage_is_one_line(tmp_path, content):
    (tmp_path / GENERATED).write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        texts_told(tmp_path)
