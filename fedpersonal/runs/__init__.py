"""Runs on disk: their folders, checkpoints, metrics, saved models, and the local-state store."""

from __future__ import annotations
