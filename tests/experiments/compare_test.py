"""The binary that compares runs: its files, and users' mistakes in one line each."""

from __future__ import annotations

import csv
import html

import numpy as np
import pandas as pd
import pytest

import fedpersonal as fp


@pytest.fixture(name="folders")
def _folders(tmp_path):
    """Two methods' runs of two seeds, the second with a lower loss."""
    folders = []
    for method, loss in (("fed_avg", 0.5), ("fed_recon", 0.4)):
        for seed in (1, 2):
            options = {"method": method, "seed": seed, "clients_per_round": 2}
            folder = fp.RunFolder.open(tmp_path / f"{method}_{seed}", options)
            values = loss + np.arange(6) / 10
            clients = {"client": list("abcdef"), "num_examples": [2] * 6, "loss_after": values}
            folder.write_per_client(clients)
            test = {"loss": float(values.mean()), "num_clients": 6}
            folder.write_summary({"method": method, "rounds": 1, "seed": seed, "test": test})
            pd.DataFrame({"round": [1], "seconds": [1.0]}).to_csv(folder.metrics_csv, index=False)
            folders.append(str(folder.path))
    return folders


def test_a_page_and_its_rows_are_written(run_program, folders, tmp_path):
    program = ("-m", "experiments.compare", *folders, "--output=out/seeds.html")
    output, errors, status = run_program(*program, cwd=tmp_path)
    assert (status, errors) == (0, "")
    paths = [tmp_path / "out" / f"seeds.{kind}" for kind in ("html", "csv")]
    verdict, *printed = output.splitlines()
    assert printed == [str(path) for path in paths]
    assert "is 0.1000 lower than that of fed_avg" in verdict
    assert verdict in html.unescape(paths[0].read_text("utf-8"))
    rows = list(csv.DictReader(paths[1].read_text("utf-8").splitlines()))
    assert float(rows[1]["difference"]) == pytest.approx(-0.1)
    table = fp.compare(folders)
    assert table["difference"][1] == pytest.approx(-0.1) and table["gained"][1] == 6


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "error: a comparison is of 2 to 10 run folders; 0 are given."),
        (["fed_avg_1", "absent"], "absent is not the folder of a run"),
        (["fed_avg_1", "fed_recon_2"], "no seed is common to all methods"),
        (["fed_avg_1", "fed_recon_1", "--metric=auc"], "has no metric 'auc'; it has loss."),
        (["fed_avg_1", "fed_recon_1", "--output=x.pdf"], "give a file that ends in .html."),
    ],
)
def test_mistakes_are_one_line(run_program, folders, tmp_path, arguments, why):
    known = sorted(tmp_path.iterdir())
    output, errors, status = run_program("-m", "experiments.compare", *arguments, cwd=tmp_path)
    assert (status, output) == (2, "") and errors.startswith("error: ") and why in errors
    assert errors.count("\n") == 1 and sorted(tmp_path.iterdir()) == known
