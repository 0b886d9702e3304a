"""Where a program's data are: made up, in a file, in a folder of data, or to be downloaded."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from fedpersonal.errors import UserError

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
    """

    holding: str
    datasets: Sequence[str]
    default: str
    files: Mapping[str, Sequence[str]]
    folders: Sequence[str] = ()
    only_by_name: Sequence[str] = ()
    file_flag: str = "text_file"
    advice: str = "use --dataset=generated"

    @property
    def choices(self) -> tuple[str, ...]:
        """All that `--dataset` may be."""
        return (AUTO, *self.datasets)


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
