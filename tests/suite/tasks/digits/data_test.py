"""Who writes which digits, and how: nothing that is tested has been trained on."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from fedpersonal.evaluation.baselines import overall_metrics
from fedpersonal.suite.tasks.digits.data import digit_baselines, read_digits, split_digits
from fedpersonal.suite.tasks.digits.task import TASK
from fedpersonal.suite.tasks.task import EvaluationSet


@pytest.fixture(name="digits", scope="module")
def _digits():
    return read_digits()


def split(digits, **options):
    return split_digits(digits, TASK.options(**options))


def parts_of(data):
    seen = (data.train, data.validation.query, data.test.query)
    return seen, (data.unseen.support, data.unseen.query)


def in_one_style(images, turn):
    """Images turned back, at the strength that makes the strongest stroke 1."""
    images = np.rot90(images, -turn, axes=(1, 2))
    return [np.round(16 * i / images.max()).astype(int).tobytes() for i in images]


def test_every_image_is_in_one_part_in_its_clients_style(digits):
    data = split(digits, num_clients=20, seed=3)
    originals = {np.round(16 * i).astype(int).tobytes() for i in digits.images}
    seen, unseen = parts_of(data)
    assert data.validation.seen and data.test.seen and not data.unseen.seen
    assert data.validation.support is data.test.support is data.train
    assert not {*data.train.client_ids} & {*data.unseen.query.client_ids}
    assert (data.train.num_clients, data.unseen.query.num_clients) == (16, 4)
    found, turns, strengths = collections.Counter(), set(), set()
    for parts in (seen, unseen):
        for client in range(parts[0].num_clients):
            images = np.concatenate([part.client(client)[0]["image"] for part in parts])
            fits = {t: in_one_style(images, t) for t in range(4)}
            (turn,) = (t for t, own in fits.items() if {*own} <= originals)
            found.update(fits[turn])
            turns.add(turn)
            strengths.add(float(images.max()))
    assert found == collections.Counter(in_one_style(digits.images, 0))
    assert turns == {0, 1, 2, 3} and len(strengths) == 20
    assert min(strengths) >= 0.4 and max(strengths) <= 1
    total = sum(part.counts for part in seen)
    for part in seen[1:]:
        assert part.counts.tolist() == np.floor(0.2 * total + 0.5).tolist()
    assert {*(unseen[0].counts - unseen[1].counts)} <= {0, 1}
    assert data.train.features["user"].tolist() == data.train.example_clients.tolist()
    assert not data.unseen.query.features["user"].any()


def test_the_less_the_skew_the_fewer_digits_a_client_has(digits):
    def digits_a_client(skew):
        train = split(digits, skew=skew).train
        return np.mean([len(np.unique(train.client(c)[1])) for c in range(train.num_clients)])

    few, some, many = map(digits_a_client, (0.05, 0.5, 1000))
    assert few < 3 < some < 8 < many


def test_a_seed_is_other_clients(digits):
    first, again, other = (split(digits, seed=seed).train for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()


def nearest(of, to):
    """The labels of the images that are nearest by cosine."""
    images, others = (part[0]["image"].reshape(-1, 64) for part in (of, to))
    return KNeighborsClassifier(1, metric="cosine").fit(others, to[1]).predict(images)


def test_guesses_are_those_of_the_support_set_and_of_all(digits):
    data = split(digits)
    for part in (data.validation, data.test, data.unseen):
        right, alike = 0, 0
        of_all = collections.Counter(data.train.labels.tolist()).most_common(1)[0][0]
        for client in range(part.query.num_clients):
            own, asked = part.support.client(client), part.query.client(client)
            right += (asked[1] == np.bincount(own[1], minlength=10).argmax()).sum()
            alike += (asked[1] == nearest(asked, own)).sum()
        neighbour, each, every = overall_metrics(digit_baselines(data, part)).values()
        assert neighbour["accuracy"] == pytest.approx(alike / part.query.num_examples)
        assert each["accuracy"] == pytest.approx(right / part.query.num_examples)
        assert every["accuracy"] == pytest.approx((part.query.labels == of_all).mean())


def test_images_of_all_would_be_a_stronger_guess(digits):
    # What docs/results/index.md says of it.
    data = split(digits)
    query, support = ((p.features, p.labels) for p in (data.test.query, data.test.support))
    assert np.mean(nearest(query, support) == query[1]) == pytest.approx(0.936, abs=0.0005)


@pytest.mark.parametrize("options", [{"num_clients": 200, "skew": 0.05}, {"unseen_clients": 0.9}])
def test_any_options_leave_something_to_predict(digits, options):
    data = split(digits, **options)
    for part in (data.validation, data.test, data.unseen):
        assert part.support.num_examples and part.query.num_examples
        assert all(
            0 <= own["accuracy"] <= 1
            for own in overall_metrics(digit_baselines(data, part)).values()
        )


def test_who_has_no_image_to_look_at_is_guessed_all_the_same(digits):
    data = split(digits)
    query = data.test.query
    nothing = query.filter_examples(np.zeros(query.num_examples, bool))
    blind = digit_baselines(data, EvaluationSet(nothing, query, seen=True))
    neighbour, each, _ = overall_metrics(blind).values()
    assert neighbour == each
    assert not any(
        overall_metrics(digit_baselines(data, EvaluationSet(query, nothing, seen=True))).values()
    )
