"""Differential privacy by options: what a run spends and says, and what it refuses."""

from __future__ import annotations

import csv

import pytest

import fedpersonal as fp
from fedpersonal.errors import UserError
from fedpersonal.report.run import format_number
from fedpersonal.suite.commands import launch
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.running import open_experiment
from fedpersonal.training.budget import PrivacyBudget

TASKS = all_tasks()
MOVIELENS = TASKS["movielens"]
PRIVATE = {"weighting": "uniform", "client_sampling": "poisson", "dp_target_epsilon": 5.0}


@pytest.mark.exhaustive(but=("movielens-seeded",))
@pytest.mark.parametrize(("task", "noise"), [("movielens", "seeded"), ("tv_shows", "secret")])
def test_a_run_spends_what_it_may_and_says_so(tiny, task, noise):
    options = {**PRIVATE, "dp_noise": noise, "dp_delta": 0.01}
    finished = tiny.run(TASKS[task], method=tiny.main[task], **options)
    told = finished.summary["privacy"]
    clients = finished.summary["num_training_clients"]
    again = PrivacyBudget(clients, 5, "poisson", told["noise_multiplier"], 0.01)
    most = [1, told["most_rounds"]]
    known = [again.epsilon_of_known_draw(n) for n in most]
    spent_by = known if noise == "seeded" else [again.epsilon(1), again.epsilon(2)]
    assert told["epsilon"] == spent_by[1] <= 5.0 < 1.01 * told["epsilon"]
    assert told["epsilon_secret_draw"] == again.epsilon(2)
    assert told["epsilon_public_draw"] == known[1]
    (line,) = launch._privacy_lines(finished.summary)
    page = (finished.path / "report.html").read_text(encoding="utf-8")
    for epsilon in (told["epsilon_secret_draw"], told["epsilon_public_draw"]):
        assert f"{epsilon:.3f}" in line and format_number(epsilon) in page
    # How often each client was drawn would tell a secret.
    columns = fp.RunFolder.read(finished.path).per_client.columns
    assert "rounds" not in columns and "never_drawn" not in finished.summary
    assert (told["delta"], told["num_clients"], told["rounds"]) == (0.01, clients, 2)
    with open(finished.path / "metrics.csv", newline="", encoding="utf-8") as file:
        spent = [float(row["epsilon"]) for row in csv.DictReader(file)]
    assert spent == spent_by
    named = " ".join(told["outside"])
    assert "metrics.csv" in named and "local variables that clients keep" in named
    assert ("base model" in named) == (task == "tv_shows")


@pytest.mark.exhaustive
def test_noise_for_so_many_rounds_stays_that(tiny, tmp_path):
    def open_for(rounds, **asked):
        options = tiny.options(MOVIELENS, method="fed_recon", total_rounds=rounds, **asked)
        experiment, _ = open_experiment(
            MOVIELENS,
            tiny.source(MOVIELENS, options),
            options,
            tmp_path / str(len(asked)),
            config=options.values(),
            may_differ=["total_rounds"],
            data="these",
        )
        return experiment.trainer.privacy.noise_multiplier

    fixed = {"weighting": "uniform", "dp_noise_multiplier": 2.0}
    assert open_for(2, **fixed) == open_for(3, **fixed) == 2.0
    assert open_for(2, **PRIVATE) == open_for(2, **PRIVATE)
    with pytest.raises(UserError, match="total_rounds was 2 and is now 3"):
        open_for(3, **PRIVATE)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "further"),
    [
        ("scaffold", {"dp_state_clip_norm": 3.0}),
        ("fed_dyn", {}),
        ("ifca", {"mean_over": "cohort"}),
    ],
)
def test_methods_with_states_train_privately_by_flags(tiny, method, further):
    """SCAFFOLD's states are a second sum, so that both sums have more noise."""
    options = {"weighting": "uniform", "dp_noise_multiplier": 2.0, "dp_clipping": "fixed"}
    finished = tiny.run(TASKS["digits"], method=method, **options, **further)
    told, bound = finished.summary["privacy"], further.get("dp_state_clip_norm")
    assert (told["noise_multiplier"], told["state_clip_norm"]) == (2.0, bound)
    assert told["update_noise_multiplier"] == pytest.approx(2.0 * 2 ** (0.5 * bool(bound)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dp_target_epsilon": 1.0, "dp_noise_multiplier": 1.0}, "no --dp_noise_multiplier"),
        ({"dp_target_epsilon": 1.0, "weighting": "num_examples"}, "give --weighting=uniform"),
        ({"dp_delta": 1e-5}, "--dp_delta is 1e-05, which has no effect without"),
        ({"dp_noise": "secret"}, "--dp_noise is secret, which has no effect without"),
        (
            {"dp_noise_multiplier": 1.0, "dp_clipping": "fixed", "dp_target_quantile": 0.1},
            "--dp_target_quantile is 0.1, which has no effect with --dp_clipping=fixed",
        ),
        ({"dp_state_clip_norm": 1.0}, "--dp_state_clip_norm is 1.0, which has no effect without"),
        (
            {"dp_noise_multiplier": 1.0, "dp_state_clip_norm": 1.0},
            "--dp_state_clip_norm is 1.0, which has no effect with --method=fed_recon, whose",
        ),
        (
            {"dp_noise_multiplier": 1.0, "dp_state_clip_norm": 1.0, "method": "fed_dyn"},
            "--method=fed_dyn, whose clients send no states",
        ),
        (
            {"dp_noise_multiplier": 1.0, "method": "scaffold"},
            "scaffold sends changes of .* give --dp_state_clip_norm",
        ),
        ({"dp_noise_multiplier": 1.0, "method": "local_only"}, "local_only sends no"),
        ({"dp_noise_multiplier": 1.0, "method": "centralized"}, "centralized sends no"),
        ({"dp_noise_multiplier": 1.0, "method": "fed_avg"}, "belongs to one client"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_a_line(tiny, options, said):
    options = {"method": "fed_recon", "weighting": "uniform", **options}
    with pytest.raises(UserError, match=said) as refused:
        tiny.build(MOVIELENS, **options)
    assert "\n" not in str(refused.value)
