"""`fedpersonal report` writes pages, and refuses what is no finished run in one line."""


def test_pages_are_written_and_mistakes_are_one_line(tmp_path, make_run, run_commands):
    run = make_run(tmp_path / "run", names=[f"somebody {i}" for i in range(12)])
    unfinished = make_run(tmp_path / "unfinished")
    for name in ("summary.json", "model.json"):
        (unfinished / name).unlink()
    (tmp_path / "empty").mkdir()
    commands = [
        ["report", "run"],
        ["report", "run", "--show_clients"],
        ["report"],
        ["report", "empty"],
        ["report", "unfinished", "run"],
        ["report", "nowhere"],
        ["report", "run", "--nonsense"],
    ]
    found = run_commands(commands[:1], modules=[], cwd=tmp_path)
    assert found == [[f"{run}/report.html\n", "", 0]]
    assert "somebody" not in (run / "report.html").read_text()
    shown, *mistakes = run_commands(commands[1:], modules=[], cwd=tmp_path)
    assert shown[2] == 0
    assert "somebody 11" in (run / "report.html").read_text()
    told = ["name the folder", "has no config.json", "has not ended", "has no config.json"]
    for (output, errors, status), text in zip(mistakes, [*told, "nonsense"]):
        assert (output, status) == ("", 2)
        assert text in errors
        assert errors.count("\n") == 1
    assert not (unfinished / "report.html").exists()


def test_a_page_needs_no_heavy_import(tmp_path, make_run, run_program):
    path = make_run(tmp_path)
    code = (
        "import sys; from fedpersonal.report.page import write_report; "
        f"write_report({str(path)!r}); "
        "print({'tensorflow', 'matplotlib', 'sklearn'} & {*sys.modules})"
    )
    assert run_program("-c", code, cwd=tmp_path) == ("set()\n", "", 0)
