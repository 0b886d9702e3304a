"""Where a program's data are, what all data that are read have, and checks of options."""

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

from fedpersonal.errors import UserError, counted, escaped, quoted

AUTO = "auto"
FILE = "file"


@dataclasses.dataclass(frozen=True)
class Sources:
    """The data that a task knows by name.

    Attributes:
        holding: What they have that others lack, such as "sentences".
        datasets: The names that a user may give, besides "auto".
        default: What "auto" means without a file or folder.
        files: Names of files that a folder of data may have, the first one found counts, by the
            source that they are of: a dataset, or "file" for any table. Their order is that of
            "auto", which takes the first source that the folder has.
        folders: Datasets whose path is the folder itself, such as downloads: nothing need be in
            it, and none need be given.
        only_by_name: Those of `files` that "auto" does not look for.
        file_flag: The flag of a table of one's own.
        advice: What else to do where a folder has none of the files.
        public: Datasets whose items and texts are nobody's secret, and name no people.
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
        """All that `--dataset` may be."""
        return (AUTO, *self.datasets)

    def are_public(self, options: Mapping[str, object]) -> bool:
        """Tells whether options name data whose items and texts are nobody's secret.

        Whatever is read from a file or a folder that a user names is not.
        """
        dataset = options.get("dataset")
        chosen = self.default if dataset == AUTO else dataset
        return chosen in self.public and not (
            options.get(self.file_flag) or options.get("data_dir")
        )


def find_source(
    sources: Sources, *, dataset: str, file: str | None, data_dir: str | None
) -> tuple[str, str | None]:
    """Settles what "auto" means, and where the data are.

    Args:
        sources: The data that there are.
        dataset: One of `sources.choices`. "auto" is the file, if there is one, else what the folder
            has, else, without a folder, `sources.default`.
        file: A table of one's own.
        data_dir: A folder of data.

    Returns:
        The source, "file" or one of `sources.datasets`, and the path of its file or folder: None of
        data that are made up, come with a package, or are downloaded to their usual place.
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
    wanted = [source for source in sources.files if source not in sources.only_by_name]
    if dataset != AUTO:
        if dataset not in sources.files:
            return dataset, None
        wanted = [dataset]
    if not data_dir:
        first = sources.files[dataset][0]
        raise UserError(f"--dataset={dataset} needs --data_dir, a folder with {first}.")
    for source in wanted:
        for name in sources.files[source]:
            path = os.path.join(data_dir, name)
            if os.path.exists(path):  # In a folder that may not be entered, too, nothing is.
                return source, data_dir if source in sources.folders else path
    missing = " or ".join(sources.files[source][0] for source in wanted)
    raise UserError(
        f"{data_dir} has no {missing}; name an own table by --{sources.file_flag}, or"
        f" {sources.advice}."
    )


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


def check_count(name: str, value: int, *, minimum: int = 0) -> int:
    """Returns `value` as a plain int, once it is known to be a whole number >= `minimum`.

    Raises:
        UserError: If it is not; the message has the option's `name`.
    """
    try:
        # A bool is an int to Python, though never to the person who wrote it.
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < minimum:
        raise UserError(f"{name} must be a whole number >= {minimum}, got {value!r}")
    return number


def check_counts(minimum: int, **counts: int) -> None:
    """Checks several options, by name, as `check_count` does."""
    for name, value in counts.items():
        check_count(name, value, minimum=minimum)


def check_distinct(name: str, values: Sequence[str]) -> None:
    """Raises a `UserError` if a value is there more than once."""
    counts = collections.Counter(values)
    if len(counts) < len(values):
        value, times = counts.most_common(1)[0]
        raise UserError(f"{name} must be distinct, but {quoted(value)} is there {times} times")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can write a text, which it cannot with what stands for undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_nul(text: str) -> bool:
    """Whether a text has a NUL character, where some programs take it to end."""
    return "\0" in text


def check_names(name: str, values: Iterable[str]) -> None:
    """Raises a `UserError` if one of the `values` is a text that pandas takes for others, too.

    To its categories, names are the same that differ after a NUL character only, or are not
    Unicode: two people would become one.
    """
    values = list(values)
    together = "".join(values)
    if has_nul(together) or not is_unicode(together):
        wrong = next(value for value in values if has_nul(value) or not is_unicode(value))
        why = "has a NUL character" if has_nul(wrong) else "is not Unicode text"
        raise UserError(f"{name}: {quoted(wrong)} {why}")


def check_fractions(fractions: tuple[float, float, float]) -> tuple[float, float, float]:
    """Returns the train, validation and test `fractions` as floats, once known to sum to 1.

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
def errors_of(what: str) -> Iterator[None]:
    """Puts `what`, such as a file's name, before the message of each `UserError`."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None


@contextlib.contextmanager
def one_line(what: str, advice: str) -> Iterator[None]:
    """Turns whatever another library raises into a `UserError` of one line."""
    try:
        yield
    except Exception as error:  # Of many kinds: network, checksum, disk, parsing.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{what} ({escaped(reason[:120])}): {advice}") from None


def check_reachable(url: str, advice: str) -> None:
    """Raises a `UserError` unless a server answers: a download without a network waits minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10).close()
    except urllib.error.HTTPError:
        pass  # A server answered; let the download find out.
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UserError(f"{url} cannot be reached ({reason}): {advice}") from None


def open_tfds(
    dataset: str, *, title: str, url: str, advice: str, data_dir: str | os.PathLike | None
) -> Callable[[Sequence[str]], Iterator[tuple[np.ndarray, ...]]]:
    """Opens a data set of TensorFlow Datasets, downloading and preparing it first if need be.

    Args:
        dataset: Its name there, such as "movielens/1m-ratings".
        title: Its name in messages.
        url: What is asked for before a download, to see whether there is a network.
        advice: What else to do, for messages.
        data_dir: Where TensorFlow Datasets keeps its data; None for its usual place.

    Returns:
        A function of names of features of one value each, which reads these columns of the training
        split in batches, in the same order each time: a (n,) array a column, texts as UTF-8 bytes.

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
    with one_line(f"TensorFlow Datasets cannot prepare {title}", advice):
        builder.download_and_prepare()

    def read(columns: Sequence[str]) -> Iterator[tuple[np.ndarray, ...]]:
        data = builder.as_dataset(split="train", shuffle_files=False)
        # Other columns may differ in length, and cannot be batched then.
        data = data.map(lambda example: tuple(example[name] for name in columns))
        return iter(tfds.as_numpy(data.batch(1 << 16)))

    return read
