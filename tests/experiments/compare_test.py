"""The command that compares runs: its files, and users' mistakes in one line each."""

from __future__ import annotations

import csv
import html

import pandas as pd
import pytest

import fedpersonal as fp


def test_a_page_and_its_rows_are_written_and_mistakes_are_one_line(
    tmp_path, make_run, run_commands
):
    runs = []
    for method, factor in (("fed_avg", 1.0), ("fed_recon", 0.9)):
        for seed in (1, 2):
            name = f"{method}_{seed}"
            folder = make_run(tmp_path / name, seed=seed, method=method)
            clients = pd.read_csv(folder / "per_client.csv")
            clients["rmse_after"] *= factor
            clients.to_csv(folder / "per_client.csv", index=False)
            runs.append(name)
    mistakes = {
        "error: a comparison is of 2 to 10 run folders; 0 are given.": [],
        "no seed is common to all methods": ["fed_avg_1", "fed_recon_2"],
        "has no metric 'auc'; it has rmse.": [*runs, "--metric=auc"],
        "give a file that ends in .html.": [*runs, "--output=x.pdf"],
    }
    commands = [["compare", *arguments] for arguments in mistakes.values()]
    files = sorted(tmp_path.iterdir())
    for (output, errors, status), why in zip(
        run_commands(commands, modules=[], cwd=tmp_path), mistakes
    ):
        assert (status, output) == (2, "") and errors.startswith("error: ") and why in errors
        assert errors.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == files
    command = ["compare", *runs, "--output=out/seeds.html"]
    ((output, errors, status),) = run_commands([command], modules=[], cwd=tmp_path)
    assert (status, errors) == (0, "")
    paths = [tmp_path / "out" / f"seeds.{kind}" for kind in ("html", "csv")]
    *verdict, page, rows = output.splitlines()
    assert [page, rows] == [str(path) for path in paths]
    assert "lower than that of fed_avg" in verdict[0]
    assert verdict[0] in html.unescape(paths[0].read_text("utf-8"))
    found = list(csv.DictReader(paths[1].read_text("utf-8").splitlines()))
    table = fp.compare([tmp_path / name for name in runs])
    assert len(found) == len(table) == 2
    assert table["difference"][1] < 0
    assert float(found[1]["difference"]) == pytest.approx(table["difference"][1])
