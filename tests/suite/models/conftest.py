"""The models of FedPerC and its baselines around a tiny base."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def build_method(tiny_base, tmp_path_factory):
    """A function of a method's name and sizes that builds its model."""
    from fedpersonal.suite.tasks.utterances.methods import METHODS
    from fedpersonal.suite.tasks.utterances.models import build_language_model, write_frozen_base

    frozen = write_frozen_base(tiny_base, tmp_path_factory.mktemp("frozen"))
    methods = {method.name: method for method in METHODS}

    def build(name, *, num_contexts, history_length=1, **sizes):
        method = methods[name]
        return build_language_model(
            method.model,
            tiny_base,
            frozen,
            local_layers=method.client_layers,
            num_contexts=num_contexts,
            history_length=history_length,
            is_fresh=method.is_fresh,
            parts=method.parts,
            **sizes,
        )

    return build
