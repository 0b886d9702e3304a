"""Training: sampling of clients, the loop over rounds, callbacks, progress, privacy budget."""

from __future__ import annotations
