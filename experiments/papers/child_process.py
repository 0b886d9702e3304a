"""Work in a process of its own, whose memory comes back when the work is done."""

from experiments.children import run_in_child

__all__ = ["run_in_child"]
