"""Local training alone: each client trains a model of its own, and nothing is ever sent.

There are no rounds. Every client starts from the same initial weights and trains all of them on
what it has before it predicts.
"""

from __future__ import annotations

from fedpersonal.methods.method import FinetuningOptions, Method


class LocalOnly(
    Method,
    name="local_only",
    title="Local training",
    reads=FinetuningOptions,
    finetunes="all",
    trains=False,
):
    """What a client does by itself."""
