"""What the noise's law is, and what is refused; clipped sums are in the table of rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.privacy import DifferentialPrivacy
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.methods.ifca import ifca
from fedpersonal.methods.scaffold import scaffold
from fedpersonal.model.names import SERVER_STATE
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.runs.folder import derive_secret
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.3)
SERVER = build_sgdm(1.0)
BATCH_SIZE, NUM_ITEMS = 3, 7
ALONE = Execution(batch_size=BATCH_SIZE)
STACKED = Execution(batch_size=BATCH_SIZE, clients_per_shard=2)
EXPECTED = 4.0


REBUILT = fed_recon(
    client_optimizer=SGD, reconstruction_optimizer=SGD, weighting="uniform", local_epochs=2
)


def private(**options):
    return DifferentialPrivacy(**{"noise_multiplier": 0.0, "expected_clients": EXPECTED, **options})


def run(execution, model, algorithm, dataset, *, cohorts, **options):
    """Returns the weights and the metrics after each round."""
    process = build_process(
        model, algorithm, execution=execution, server_optimizer=SERVER, **options
    )
    state, weights, metrics = process.initialize(), [], []
    for indices in cohorts:
        cohort = make_cohort(
            model, dataset, indices, execution=execution, touched_data=algorithm.touched_data
        )
        state, of_round = process.next(state, cohort.examples)
        weights.append(dict(state.global_model_weights.trainable))
        metrics.append(of_round)
    return weights, metrics


@pytest.fixture(name="linear", scope="module")
def _linear():
    def build_model():
        x = tf.keras.Input([2], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="linear")(x))

    return PartitionedModel(build_model)


def linear_data(make_dataset, *scales):
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 2)).astype(np.float32)
    return make_dataset([({"x": s * x}, np.ones(4, np.float32)) for s in scales])


def distance(model, weights):
    start = model.initial_global_values()
    return math.sqrt(sum(np.square(weights[k] - start[k]).sum() for k in start))


@pytest.mark.exhaustive(but=("stacked",))
@pytest.mark.parametrize("execution", [STACKED, ALONE], ids=["stacked", "alone"])
def test_huge_updates_count_for_the_bound_and_endless_ones_for_nothing(
    linear, make_dataset, execution
):
    algorithm = fed_avg(client_optimizer=SGD, weighting="uniform")
    privacy = private(clip_norm=0.5, clipping="fixed")
    for scale in (1e2, 1e12, np.nan):
        dataset = linear_data(make_dataset, scale)
        (weights,), _ = run(execution, linear, algorithm, dataset, cohorts=[[0]], privacy=privacy)
        moved = distance(linear, weights)
        assert moved == pytest.approx(0.5 / EXPECTED if scale == 1e2 else 0.0, rel=1e-5)


def noise_of(model, ratings, *, seed=0, secret_seed=None, execution=STACKED, **options):
    """Returns what noise adds in each of three rounds without clients, and four rounds' metrics."""
    options = {"clip_norm": 0.3, "noise_multiplier": 2.0, "clipping": "fixed", **options}
    weights, metrics = run(
        execution,
        model,
        REBUILT,
        ratings,
        cohorts=[[]] * 4,
        privacy=private(**options),
        seed=seed,
        secret_seed=secret_seed,
    )
    drawn = [{k: np.ravel(b[k] - a[k]) for k in a} for a, b in zip(weights, weights[1:])]
    return [np.concatenate(list(one.values())) for one in drawn], metrics


def test_noise_has_its_deviation_and_is_never_used_twice(ratings):
    model = PartitionedModel(
        matrix_factorization(num_items=3_000, embedding_dim=10),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"},
    )
    rounds, _ = noise_of(model, ratings)
    # 30,000 draws and more of a round: the deviation has a standard error of .4 %.
    for noise in rounds:
        assert abs(noise.std() / (2.0 * 0.3 / EXPECTED) - 1) < 0.02
        assert abs(noise.mean()) < 5 * noise.std() / math.sqrt(noise.size)
        scaled = (noise - noise.mean()) / noise.std()
        # Gaussian: a fourth moment of 3 and 4.55 % beyond two deviations.
        assert abs((scaled**4).mean() - 3) < 0.3
        assert abs((np.abs(scaled) > 2).mean() - 0.0455) < 0.007
    different, _ = noise_of(model, ratings, seed=1)
    secret, again, repeated = (
        noise_of(model, ratings, noise="secret", secret_seed=derive_secret(s, "noise"))[0]
        for s in (1, 2, 1)
    )
    np.testing.assert_equal(secret, repeated)
    every = [*rounds, *different, *secret, *again]
    for i, one in enumerate(every):
        for other in every[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    for one, other in zip(rounds, noise_of(model, ratings, execution=ALONE)[0]):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_states_get_noise_by_their_own_bound(linear):
    """Of a round without clients, both sums are noise alone."""
    algorithm = scaffold(client_optimizer=SGD, weighting="uniform")
    privacy = private(clip_norm=0.3, clipping="fixed", noise_multiplier=2.0, state_clip_norm=6.0)
    process = build_process(
        algorithm.prepare(linear), algorithm, execution=ALONE, server_optimizer=SERVER,
        privacy=privacy, num_clients=8,
    )  # fmt: skip
    state, drawn = process.initialize(), {False: [], True: []}
    for _ in range(200):
        before, state = state, process.next(state, []).state
        for name, value in state.global_model_weights.trainable.items():
            change = np.ravel(value - before.global_model_weights.trainable[name])
            drawn[name.startswith(SERVER_STATE)].extend(change)
    for is_state, unit in ((False, 0.3 / EXPECTED), (True, 6.0 / 8)):
        assert np.std(drawn[is_state]) == pytest.approx(2.0 * math.sqrt(2) * unit, rel=0.15)


def test_adaptive_clipping_pays_for_its_count(model, ratings):
    """The sum's noise and the count's are together one mechanism of the multiplier asked for."""
    for multiplier, expected in ((1.0, 100.0), (2.0, 8.0)):
        privacy = private(noise_multiplier=multiplier, expected_clients=expected)
        both = privacy.update_noise_multiplier**-2 + (2 * privacy.count_noise) ** -2
        assert both**-0.5 == pytest.approx(multiplier)
        assert privacy.count_noise == max(expected / 20, multiplier)
        both = private(
            noise_multiplier=multiplier, expected_clients=expected, state_clip_norm=3.0
        ).update_noise_multiplier
        assert (2 * both**-2 + (2 * privacy.count_noise) ** -2) ** -0.5 == pytest.approx(multiplier)
    tffs = pytest.importorskip("tensorflow_federated")
    theirs = tffs.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(1.0, 100.0)
    query = theirs._query._numerator
    privacy = private(noise_multiplier=1.0, expected_clients=100.0)
    assert query._noise_multiplier == pytest.approx(privacy.update_noise_multiplier)
    _, metrics = noise_of(model, ratings, clipping="adaptive")
    norms = [float(one["clip_norm"]) for one in metrics]
    # Without clients half of them are within the bound, plus noise: it moves by exp(-.2 noise).
    assert norms[0] == np.float32(0.3) and len(set(norms)) > 1
    assert all(abs(math.log(b / a)) <= 0.1 + 1e-6 for a, b in zip(norms, norms[1:]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithm": fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)}, "uniform"),
        ({"aggregator": "an aggregator"}, "privacy is an aggregator"),
        ({"algorithm": ifca(client_optimizer=SGD)}, "use mean_over='cohort'"),
        ({"privacy": DifferentialPrivacy(1.0)}, "expected_clients is missing"),
        ({"privacy": private(noise="secret")}, "needs a secret_seed"),
        (
            {"algorithm": scaffold(client_optimizer=SGD, weighting="uniform")},
            "scaffold sends changes of the server's states.*state_clip_norm",
        ),
        ({"privacy": private(state_clip_norm=1.0)}, "state_clip_norm=1.0 has no effect"),
    ],
    ids=["weighting", "aggregator", "clusters", "expected", "secret", "states", "no states"],
)
def test_what_does_not_fit_is_named(model, change, said):
    options = {"algorithm": REBUILT, "privacy": private(), **change}
    algorithm = options.pop("algorithm")
    model = algorithm.prepare(model)
    with pytest.raises(UserError, match=said):
        build_process(
            model, algorithm, execution=STACKED, server_optimizer=SERVER, num_clients=9, **options
        )


@pytest.mark.parametrize(
    "options",
    [
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"clip_norm": 0.0},
        {"state_clip_norm": 0.0},
        {"target_quantile": 1.5},
        {"target_quantile": 0.4, "clipping": "fixed"},
        {"expected_clients": 0.0},
    ],
    ids=str,
)
def test_options_out_of_range_are_named(options):
    with pytest.raises(UserError, match=next(iter(options))):
        private(**options)
