"""Type checkers know what the public names are: a program has no `Any`, and its slips are found."""

from __future__ import annotations

import pathlib

from mypy import api

# What mypy knows of installed packages takes most of the time.
CACHE = pathlib.Path(__file__).parents[1] / ".pytest_cache" / "mypy"

PROGRAM = """
import fedpersonal as fp
from fedpersonal.optimizers import build_client_optimizer

data = fp.ClientDataset(["a", "b"], [0, 1, 2], {"x": [[1.0], [2.0]]}, [1.0, 2.0])
sgd = build_client_optimizer("sgd", 0.1)
algorithm = fp.ditto(client_optimizer=sgd, pull=0.5)

def train(model: fp.PartitionedModel) -> dict[str, float]:
    trainer = fp.Trainer(model, algorithm, data, batch_size=1)
    with trainer.fit(rounds=2, progress=False) as trained:
        return trained.overall(data)
"""
SLIPS = """
fp.ditto(client_optimizer=sgd, pul=0.5)
fp.ditto(pull=0.5)
fp.fed_avg(client_optimizer=sgd, weighting="age")
fp.fedperc(client_optimizer=sgd, layers=3)
"""


def test_a_program_has_no_any_and_its_slips_are_found(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "slips.py").write_text(PROGRAM + SLIPS)
    options = ["--disallow-any-expr", "--ignore-missing-imports", "--follow-imports=silent"]
    options += ["--config-file=", f"--cache-dir={CACHE}"]
    found, errors, _ = api.run([*options, str(tmp_path / "program.py"), str(tmp_path / "slips.py")])
    assert not errors
    lines = [line.partition("slips.py:")[2] for line in found.splitlines() if ": error:" in line]
    first = PROGRAM.count("\n") + 2
    kinds = ["[call-arg]", "[call-arg]", "[arg-type]", "[arg-type]"]
    assert [(line.split(":")[0], line.split()[-1]) for line in lines] == [
        (str(first + place), kind) for place, kind in enumerate(kinds)
    ], found
