"""What all data that were read or made up tell of themselves."""

from __future__ import annotations

import abc
from collections.abc import Mapping

import numpy as np

from fedpersonal.data.fingerprint import fingerprint


class LoadedData(abc.ABC):
    """Data of many clients; a dataclass of arrays with these two fields beside.

    Attributes:
        name: What the data are, such as "movielens-100k".
        report: What was left out when they were read: why, and how many times.
    """

    name: str
    report: Mapping[str, int]

    @property
    @abc.abstractmethod
    def sizes(self) -> dict[str, int]:
        """How many examples there are, `num_users`, and what else counts, in this order."""

    def summary(self) -> str:
        """A line that says what there is, and what was left out."""
        examples, users, *others = (
            f"{n:,} {what[4:].replace('_', ' ')}" for what, n in self.sizes.items()
        )
        left_out = (f"; {count:,} {what}" for what, count in self.report.items() if count)
        return f"{self.name}: {', '.join([f'{examples} of {users}', *others])}{''.join(left_out)}"

    def describe(self) -> dict[str, object]:
        """What tells these data from others, of what JSON can write."""
        return {"dataset": self.name, **self.sizes}

    def fingerprint(self) -> str:
        """A short hash of the content, whatever its name and report: 16 hexadecimal digits."""
        return fingerprint({k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)})
