"""What data tell of themselves, and a short name for their content, by which a run knows them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Mapping

import numpy as np

from fedpersonal.errors import counted


def fingerprint(columns: Mapping[str, np.ndarray]) -> str:
    """Hashes arrays of numbers or of str, by name in whatever order, to 16 hexadecimal digits.

    The same names, shapes, dtypes and values give the same text anywhere.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name, column in sorted(columns.items()):
        digest.update(f"{name} {column.shape} {column.dtype.str}".encode())
        if column.dtype == object:
            texts = [str(value).encode("utf-8", "surrogatepass") for value in column.flat]
            digest.update(np.fromiter(map(len, texts), np.int64, len(texts)).data)
            digest.update(b"".join(texts))
        else:
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


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
            counted(n, what[4:].replace("_", " ")) for what, n in self.sizes.items()
        )
        left_out = (f"; {counted(count, what)}" for what, count in self.report.items() if count)
        return f"{self.name}: {', '.join([f'{examples} of {users}', *others])}{''.join(left_out)}"

    def describe(self) -> dict[str, object]:
        """What tells these data from others, of what JSON can write."""
        return {"dataset": self.name, **self.sizes}

    def fingerprint(self) -> str:
        """A short hash of the content, whatever its name and report: 16 hexadecimal digits."""
        return fingerprint({k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)})
