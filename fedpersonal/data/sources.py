"""Sources of a program's data, the base class of loaded data, and checks of options."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import hashlib
import operator
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedpersonal.errors import UserError, printable, quoted, with_count

AUTO = "auto"
FILE = "file"


@dataclasses.dataclass(frozen=True)
class Sources:
    """The datasets that a task can load by name.

    Attributes:
        holding: The content of the datasets, for messages, such as "sentences".
        datasets: The names of datasets, besides "auto".
        default: The dataset of "auto" without a file or folder.
        files: Source to the names of files that a folder of data may have; the first existing file
            is read. A source is a dataset, or "file" for any table. "auto" takes the first source
            that the folder has.
        folders: Datasets whose path is the folder itself, such as downloads. The folder may be
            empty or omitted.
        only_by_name: Sources of `files` that "auto" does not search.
        file_flag: The flag of a user-supplied table.
        advice: The alternative if a folder has none of the files, for messages.
        public: Datasets whose items and texts are public and name no people.
        tables: Sources that are read as tables, whose format options may describe.
    """

    holding: str
    datasets: Sequence[str]
    default: str
    files: Mapping[str, Sequence[str]]
    folders: Sequence[str] = ()
    only_by_name: Sequence[str] = ()
    file_flag: str = "text_file"
    advice: str = "use --dataset=generated"
    public: Sequence[str] = ("generated",)
    tables: Sequence[str] = (FILE,)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of `--dataset`."""
        return (AUTO, *self.datasets)

    def is_public(self, options: Mapping[str, object]) -> bool:
        """Returns whether options name a dataset whose items and texts are public.

        Data from a user-supplied file or folder are never public.
        """
        dataset = options.get("dataset")
        chosen = self.default if dataset == AUTO else dataset
        return chosen in self.public and not (
            options.get(self.file_flag) or options.get("data_dir")
        )


def find_source(
    sources: Sources, *, dataset: str, file: str | None, data_dir: str | None
) -> tuple[str, str | None]:
    """Returns the source of the data, and its path.

    Args:
        sources: The datasets of a task.
        dataset: One of `sources.choices`. "auto" is the file, if given, else the first source in
            the folder, or `sources.default` without a folder.
        file: A user-supplied table.
        data_dir: A folder of data.

    Returns:
        The source, "file" or one of `sources.datasets`, and the path of its file or folder: None
        for data that are generated, part of a package, or downloaded to the default folder.
    """
    if dataset not in sources.choices:
        raise UserError(
            f"--dataset={dataset} has no {sources.holding}; these have:"
            f" {', '.join(sources.choices)}."
        )
    if file:
        if dataset != AUTO:
            raise UserError(f"--{sources.file_flag} and --dataset={dataset} exclude each other.")
        return FILE, file
    if dataset == AUTO and not data_dir:
        return sources.default, None
    if dataset in sources.folders:
        return dataset, data_dir
    candidates = [source for source in sources.files if source not in sources.only_by_name]
    if dataset != AUTO:
        if dataset not in sources.files:
            return dataset, None
        candidates = [dataset]
    if not data_dir:
        first = sources.files[dataset][0]
        raise UserError(f"--dataset={dataset} needs --data_dir, a folder with {first}.")
    for source in candidates:
        for name in sources.files[source]:
            path = os.path.join(data_dir, name)
            if os.path.exists(path):  # False, too, in a folder without permission.
                return source, data_dir if source in sources.folders else path
    missing = " or ".join(sources.files[source][0] for source in candidates)
    raise UserError(
        f"{data_dir} has no {missing}; name a table of your own by --{sources.file_flag}, or"
        f" {sources.advice}."
    )


def fingerprint(columns: Mapping[str, np.ndarray]) -> str:
    """Hashes named arrays of numbers or of str to 16 hexadecimal digits.

    Equal names, shapes, dtypes and values give the same text on any machine and in any order.
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
    """Base class of clients' data: dataclasses of arrays with these two fields.

    Attributes:
        name: The name of the data, such as "movielens-100k".
        report: Reason to the number of things that were left out when the data were read.
    """

    name: str
    report: Mapping[str, int]

    @property
    @abc.abstractmethod
    def sizes(self) -> dict[str, int]:
        """The number of examples, `num_users`, and further counts by name, in this order."""

    def summary(self) -> str:
        """Returns a line about the data, with what was left out."""
        examples, users, *others = (
            with_count(n, name[4:].replace("_", " ")) for name, n in self.sizes.items()
        )
        left_out = "".join(f"; {with_count(n, reason)}" for reason, n in self.report.items() if n)
        return f"{self.name}: {', '.join([f'{examples} of {users}', *others])}{left_out}"

    def describe(self) -> dict[str, object]:
        """Returns values that identify the data, which JSON can write."""
        return {"dataset": self.name, **self.sizes}

    def fingerprint(self) -> str:
        """Returns a short hash of the content without name and report: 16 hexadecimal digits."""
        return fingerprint({k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)})


def check_count(name: str, value: int, *, minimum: int = 0) -> int:
    """Returns a whole number >= `minimum` as a plain int.

    Raises:
        UserError: If `value` is anything else; the message has the option's `name`.
    """
    try:
        # A bool is an int in Python, but not meant as one.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise UserError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return number


def check_counts(minimum: int, **counts: int) -> None:
    """Checks several options by `check_count`."""
    for name, value in counts.items():
        check_count(name, value, minimum=minimum)


def check_distinct(name: str, values: Sequence[str]) -> None:
    """Raises a `UserError` if a value occurs more than once."""
    counts = collections.Counter(values)
    if len(counts) < len(values):
        value, times = counts.most_common(1)[0]
        raise UserError(f"{name} must be distinct, but {quoted(value)} is there {times} times")


def is_unicode(text: str) -> bool:
    """Returns whether UTF-8 can encode a text: it has no lone surrogates of undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_nul(text: str) -> bool:
    """Returns whether a text has a NUL character, which ends a text for some programs."""
    return "\0" in text


def check_names(name: str, values: Iterable[str]) -> None:
    """Raises a `UserError` if pandas would confuse one of the `values` with other names.

    Categories of pandas do not distinguish names that differ only after a NUL character, or that
    are not Unicode: two people would become one.
    """
    values = list(values)
    joined = "".join(values)
    if has_nul(joined) or not is_unicode(joined):
        wrong = next(value for value in values if has_nul(value) or not is_unicode(value))
        reason = "has a NUL character" if has_nul(wrong) else "is not Unicode text"
        raise UserError(f"{name}: {quoted(wrong)} {reason}")


def check_fractions(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    """Returns the train, validation and test `fractions` as floats.

    Raises:
        UserError: Unless there are three, each in [0, 1], that sum to 1.
    """
    try:
        train, validation, test = (float(fraction) for fraction in fractions)
    except (TypeError, ValueError):
        train = validation = test = -1.0
    if min(train, validation, test) >= 0.0 and abs(train + validation + test - 1.0) <= 1e-6:
        return train, validation, test
    raise UserError(
        "fractions must be three numbers (train, validation, test) in [0, 1] that sum to 1,"
        f" got {fractions!r}"
    )


@contextlib.contextmanager
def prefix_errors(prefix: str) -> Iterator[None]:
    """Puts a prefix, such as a file's name, before the message of each `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{prefix}: {error}") from None


@contextlib.contextmanager
def shorten_errors(failure: str, advice: str) -> Iterator[None]:
    """Turns an error of another library into a `UserError` of one line."""
    try:
        yield
    except Exception as error:  # Errors of network, checksum, disk or parsing.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{failure} ({printable(reason[:120])}): {advice}") from None


def check_reachable(url: str, advice: str) -> None:
    """Raises a `UserError` unless a server answers, because a download would wait for minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        pass  # A server answered; the download reports its error.
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be reached ({reason}): {advice}") from None


def open_tfds(
    dataset: str, *, title: str, url: str, advice: str, data_dir: str | os.PathLike | None
) -> Callable[[Sequence[str]], Iterator[tuple[np.ndarray, ...]]]:
    """Opens a dataset of TensorFlow Datasets; downloads and prepares it if necessary.

    Args:
        dataset: The name in TensorFlow Datasets, such as "movielens/1m-ratings".
        title: The name in messages.
        url: The address that is requested before a download, to check the network.
        advice: The alternative, for messages.
        data_dir: The folder of TensorFlow Datasets; None for its default.

    Returns:
        A function of names of scalar features. It reads these columns of the training split in
        batches, always in the same order: a (n,) array a column, texts as UTF-8 bytes.

    Raises:
        UserError: If TensorFlow Datasets is missing, or the data cannot be downloaded or prepared.
    """
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise UserError(
            "the package tensorflow_datasets is not installed: pip install "
            f"'fedpersonal[datasets]', or {advice}"
        ) from None
    builder = tfds.builder(dataset, data_dir=data_dir)
    if not os.path.isdir(builder.data_dir):
        check_reachable(url, advice)
    with shorten_errors(f"TensorFlow Datasets cannot prepare {title}", advice):
        builder.download_and_prepare()

    def read(columns: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
        data = builder.as_dataset(split="train", shuffle_files=False)
        # Other columns may have varying lengths, which cannot be batched.
        data = data.map(lambda example: tuple(example[name] for name in columns))
        return iter(tfds.as_numpy(data.batch(1 << 16)))

    return read
