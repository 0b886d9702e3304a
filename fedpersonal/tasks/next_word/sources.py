"""Where the sentences of next word prediction come from."""

from __future__ import annotations

import pathlib

from fedpersonal.data.stack_overflow import DATABASE
from fedpersonal.data.text_corpus import TextCorpus
from fedpersonal.errors import UserError

DATASETS = ("auto", "generated", "stack_overflow")
STACK_EXCHANGE = ("stack_exchange.jsonl.gz", "stack_exchange.jsonl", "stack_exchange.csv")


def find_source(
    *, dataset: str, text_file: str | None, data_dir: str | None
) -> tuple[str, str | None]:
    """Settles what `auto` means.

    Args:
        dataset: `auto`, `generated` or `stack_overflow`.
        text_file: A table of texts, or None.
        data_dir: A folder of data, or None: TFF's Stack Overflow where its database is there,
            else a table of Stack Exchange texts.

    Returns:
        `generated`, `stack_overflow`, or `text` and the table's path.

    Raises:
        UserError: If the folder has neither, or two sources are named.
    """
    if dataset not in DATASETS:
        raise UserError(f"--dataset={dataset} has no sentences; these have: {', '.join(DATASETS)}.")
    if text_file:
        if dataset != "auto":
            raise UserError(f"--text_file and --dataset={dataset} exclude each other.")
        return "text", text_file
    if dataset != "auto":
        return dataset, None
    if not data_dir:
        return "generated", None
    folder = pathlib.Path(data_dir)
    if (folder / DATABASE).exists():
        return "stack_overflow", None
    for name in STACK_EXCHANGE:
        if (folder / name).exists():
            return "text", str(folder / name)
    raise UserError(
        f"{data_dir} has neither {DATABASE} nor {STACK_EXCHANGE[0]}; name an own table by "
        "--text_file, or download TFF's data to it by --dataset=stack_overflow."
    )


def describe(corpus: TextCorpus) -> str:
    """Returns a line that says what is there and what was left out."""
    left_out = "".join(f"; {count:,} {what}" for what, count in corpus.report.items())
    return (
        f"{corpus.name}: {corpus.num_sentences:,} sentences of {corpus.num_clients:,} users"
        f"{left_out}"
    )
