"""The examples run as they are, and are as short as they claim."""

from __future__ import annotations

import ast
import io
import json
import pathlib
import re
import tokenize

import numpy as np
import pytest
import tensorflow as tf

import fedpersonal as fp

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
# Each with numbers that it prints, in order, of which each must be lower than the one before.
PROGRAMS = {
    "own_model": r"loss.*: (\d+\.\d+)",
    "own_furl": r"loss.* (\d+\.\d+)",
    "own_method": r"loss (\d+\.\d+)",
    "own_aggregator": r"loss.*: (\d+\.\d+)",
    "own_server": r"loss (\d+\.\d+) with alpha",
    "finished_run": r"(\d+) rounds, the best one is (\d+)",
}
# Each runs a binary, and prints how badly users are served before and after they personalise.
BINARIES = {
    "own_ratings": r"rmse (?:before|after).*: (\d\.\d+)",
    "own_texts": r"with .*: (\d\.\d+)",
}


def lines_of_code(path):
    """Lines with code on them: no docstrings, comments or blank lines."""
    source = path.read_text(encoding="utf-8")
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)):
            if ast.get_docstring(node):
                text = node.body[0]
                docstrings.update(range(text.lineno, text.end_lineno + 1))
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*nothing, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


# A method of one's own; and a task, whose run opens again.
USUAL = ("own_method", "own_task", "opens again")
OWN_DATA = [f"{c},{x},{-x},{c + 2 * x}" for c in range(12) for x in range(-3, 4)]
OWN_RATINGS = [f"u{u},i{i},{1 + (u + i) % 5}" for u in range(20) for i in range(15)]
# All clients in each round, so that all have kept their heads.
OWN_TASK = "--total_rounds=3 --method=fed_rep --clients_per_round=40 --output_dir=own_task"
OWN_BINARY = (
    "--ratings_file=ratings.csv --total_rounds=2 --method=slow_body --evaluate_on=seen "
    "--output_dir=own_binary"
)
OPENS_AGAIN = """
import sys
import fedpersonal as fp
from examples.own_task import TASK
run = fp.load_run("own_task")
options = TASK.options(**{n: v for n, v in run.config["options"].items() if n != "task"})
test = TASK.split(TASK.read(options), options).test
with run.trained as trained:
    assert trained.evaluate(test.query)["has_kept"].all()
    print(trained.overall(test.query)["accuracy"])
"""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    texts = {
        "data.csv": "\n".join(["client,x1,x2,y", *OWN_DATA, ""]),
        "ratings.csv": "\n".join(["user,item,rating", *OWN_RATINGS, ""]),
        "opens_again.py": OPENS_AGAIN,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(name="ran", scope="module")
def _ran(run_commands, folder, request):
    """What each program prints; none has an error."""
    files = {name: [str(EXAMPLES / f"{name}.py")] for name in (*PROGRAMS, *BINARIES)}
    programs = {
        **files,
        "own data": [*files["own_model"], "data.csv"],
        "own_task": ["examples.own_task", *OWN_TASK.split()],
        "own_binary": ["examples.own_binary", *OWN_BINARY.split()],
        "opens again": ["opens_again.py"],
    }
    if not request.config.getoption("exhaustive"):
        programs = {name: programs[name] for name in USUAL}
    modules = ["tensorflow_federated", "pandas"]
    outcomes = run_commands([*programs.values()], modules=modules, cwd=folder)
    outputs = {}
    for name, (output, errors, status) in zip(programs, outcomes):
        assert status in (0, None), f"{name}: {errors}"
        assert name not in PROGRAMS or errors == "", name
        outputs[name] = output
    return outputs


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        pytest.param(*row, id=row[0], marks=[] if row[0] in USUAL else pytest.mark.exhaustive)
        for row in PROGRAMS.items()
    ],
)
def test_an_example_runs_and_learns(ran, name, pattern):
    found = re.findall(pattern, ran[name])
    numbers = [float(n) for match in found for n in ([match] if isinstance(match, str) else match)]
    assert len(numbers) == 2 and numbers[1] < numbers[0], ran[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "pattern"), BINARIES.items())
def test_an_example_runs_a_binary_and_opens_its_run(ran, name, pattern):
    before, after = map(float, re.findall(pattern, ran[name]))
    assert after < 0.8 * before if name == "own_ratings" else after > 1.2 * before
    if name == "own_ratings":
        recommended = re.search(r"likes 0 and 2 may like (.*)", ran[name])[1].split()
        assert len(recommended) == 5 and not {"0", "1", "2", "3"} & {*recommended}, "rated ones"


@pytest.mark.exhaustive
def test_own_model_takes_own_data(ran):
    assert len(re.findall(r"loss.*: \d", ran["own data"])) == 2


def test_the_task_of_ones_own_runs_to_its_end(ran, folder):
    """It writes what the tasks of the library write, and its model opens again."""
    assert "10 writers who never took part: accuracy" in ran["own_task"]
    summary = json.loads((folder / "own_task" / "summary.json").read_text())
    assert (summary["dataset"], summary["rounds"]) == ("digits", 3)
    assert 0 < summary["test"]["accuracy"] <= 1 and 0 < summary["unseen"]["accuracy"] <= 1
    boundary = json.loads((folder / "own_task" / "boundary.json").read_text())
    names = {row["name"].split(".")[-1] for row in boundary}
    assert "deeper/kernel" in names and not any(name.startswith("head/") for name in names)
    assert float(ran["opens again"]) == pytest.approx(summary["test"]["accuracy"], rel=1e-6)


@pytest.mark.exhaustive
def test_a_registered_method_is_a_choice_of_a_binary(ran, folder):
    summary = json.loads((folder / "own_binary" / "summary.json").read_text())
    assert summary["method"] == "slow_body"


@pytest.mark.parametrize("name", [*PROGRAMS, *BINARIES])
def test_an_example_is_short_and_uses_the_one_door(name):
    path = EXAMPLES / f"{name}.py"
    assert lines_of_code(path) < (70 if name == "own_server" else 40)
    imported = re.findall(r"^(?:import|from) (\w+).*$", path.read_text(), re.MULTILINE)
    packages = {"fedpersonal", "numpy", "pandas", "tensorflow", "tensorflow_federated"}
    standard = {"__future__", "dataclasses", "functools", "subprocess", "sys", "tempfile"}
    assert set(imported) <= packages | standard


def test_a_server_of_ones_own_that_weighs_all_models_alike_is_federated_averaging(tmp_path):
    from examples import own_server

    random = np.random.default_rng(1)
    x, y = random.normal(size=(40, 2)).astype(np.float32), random.normal(size=40)
    clients = fp.ClientDataset([*"abcd"], np.arange(5) * 10, {"x": x}, y.astype(np.float32))
    layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(1, name="line")]
    model = fp.PartitionedModel(tf.keras.Sequential(layers))
    work = {"client_optimizer": tf.keras.optimizers.SGD(0.1), "local_epochs": 2}
    rounds = {"batch_size": 4, "clients_per_round": 4, "shards": 2}
    options = {"rounds": 3, "step": 2.5e8, "width": 1e9}
    trainer = fp.Trainer(model, own_server.amp(**work), clients, **rounds)
    amp = own_server.train(trainer, str(tmp_path), **options)
    known, kept = amp.kept_by([*"abcd"])
    shared = fp.Trainer(model, fp.fed_avg(**work, weighting="uniform"), clients, **rounds)
    expected = shared.fit(rounds=3, progress=False).weights
    assert known.all()
    for name, value in expected.items():
        np.testing.assert_allclose(
            kept[f"personal_copy/{name}"].mean(0), value, rtol=1e-5, atol=1e-6
        )
    assert np.ptp(kept["personal_copy/line/kernel"], axis=0).max() > 1e-2


def test_the_task_of_ones_own_is_small():
    assert len((EXAMPLES / "own_task.py").read_text().splitlines()) <= 60
