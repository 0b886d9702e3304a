"""Cohorts made in the background, one round ahead."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

Made = TypeVar("Made")


@contextlib.contextmanager
def one_ahead(make: Callable[[int], Made], numbers: range) -> Iterator[Callable[[int], Made]]:
    """Makes things in a second thread while the first is busy with the one before.

    Yields:
        A function that returns the thing of one of the numbers, which are asked for in their order,
        and has the next one begun. What `make` raises, it raises.
    """
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="prefetch")
    begun: dict[int, concurrent.futures.Future[Made]] = {}

    def get(number: int) -> Made:
        for wanted in (number, number + numbers.step):
            if wanted in numbers and wanted not in begun:
                begun[wanted] = thread.submit(make, wanted)
        return begun.pop(number).result()

    try:
        yield get
    finally:
        thread.shutdown(cancel_futures=True)
