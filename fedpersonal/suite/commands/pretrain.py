"""Trains a small GPT-2 from scratch on tables of texts, as a base model that needs no hub.

fedpersonal pretrain --text_file=path/to/comments.jsonl.gz --output_dir=results/base_model
"""

from __future__ import annotations

import os
import pathlib
import typing
from typing import Any

from absl import flags

from fedpersonal.errors import UserError
from fedpersonal.files import read_json
from fedpersonal.runs.record import check_same
from fedpersonal.suite.commands import launch, option_flags
from fedpersonal.suite.tasks.options import FormatOptions

FLAGS = flags.FLAGS

flags.DEFINE_multi_string("text_file", [], "A table of texts, CSV or JSON lines; repeatable.")
flags.DEFINE_string("text_column", "text", "Its column of texts.")
flags.DEFINE_string("user_column", "user", "Its column of users, for --leave_out_users.")
flags.DEFINE_multi_string(
    "leave_out_users", [], "A user whose texts are left out of the training; repeatable."
)
option_flags.define(FormatOptions)
flags.DEFINE_string("output_dir", "results/base_model", "The folder of the model.")
flags.DEFINE_integer("vocab_size", 4096, "Tokens of the tokenizer.", lower_bound=257)
flags.DEFINE_integer("num_layers", 4, "Transformer blocks.", lower_bound=1)
flags.DEFINE_integer("num_heads", 4, "Attention heads of a block.", lower_bound=1)
flags.DEFINE_integer("dim", 128, "Size of embeddings and hidden states.", lower_bound=1)
flags.DEFINE_integer("positions", 64, "The most tokens that it can read.", lower_bound=2)
flags.DEFINE_integer("steps", 1200, "Training steps.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Windows of --positions tokens of a step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-3, "The highest learning rate.")
flags.DEFINE_integer("seed", 0, "Fixes every random choice.", lower_bound=0)

_NOTES = "pretraining.json"
_SETTINGS = (
    "text_file", "text_column", "user_column", "leave_out_users", "vocab_size", "num_layers",
    "num_heads", "dim", "positions", "steps", "batch_size", "learning_rate", "seed",
)  # fmt: skip


def main() -> None:
    """Trains the model that the flags describe and prints its folder."""
    if not FLAGS.text_file:
        raise UserError("--text_file: name at least one table of texts.")
    format = typing.cast("FormatOptions", option_flags.parse(FormatOptions))
    settings = {name: FLAGS[name].value for name in _SETTINGS} | format.changed()
    if _is_there(settings):
        print(f"The base model is in {FLAGS.output_dir} already.")
        return
    # Mistakes in data are reported before TensorFlow is imported.
    texts = _read_texts(format)
    import dataclasses

    from fedpersonal.suite.models.pretraining import ModelSizes, pretrain_into

    sizes = {field.name: FLAGS[field.name].value for field in dataclasses.fields(ModelSizes)}
    report = pretrain_into(
        FLAGS.output_dir,
        texts,
        settings=settings,
        start=ModelSizes(**sizes),
        steps=FLAGS.steps,
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        seed=FLAGS.seed,
        progress=True,
    )
    print(
        f"{report.num_validation_texts:,} held-out texts: perplexity per token "
        f"{report.curve[0][1]:.1f} before and {report.curve[-1][1]:.1f} after training"
    )
    print(
        f"{report.steps:,} steps in {report.seconds:.1f} s, "
        f"{1000 * report.seconds / report.steps:.0f} ms a step; {report.vocab_size:,} tokens, "
        f"{report.num_parameters:,} parameters; the base model is in {FLAGS.output_dir}"
    )


def _is_there(settings: dict[str, object]) -> bool:
    """Returns whether the folder has the model of these settings.

    Raises:
        UserError: If it has a model of other settings, or other files.
    """
    folder = pathlib.Path(FLAGS.output_dir)
    if not (folder / _NOTES).exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise UserError(
                f"{folder} has files, but no base model of this program; choose another "
                "--output_dir."
            )
        return False
    existing = read_json(folder / _NOTES, {"settings": dict})["settings"]
    check_same("settings", existing, settings, folder)
    return True


def _read_texts(format: FormatOptions) -> list[str]:
    """Reads the tables and prints their contents."""
    import numpy as np

    from fedpersonal.data.formats import Column
    from fedpersonal.data.tables import read_table

    texts: list[str] = []
    left_out, all_users = list(FLAGS.leave_out_users), set()
    for path in FLAGS.text_file:
        columns = [Column(FLAGS.text_column, option="text_column")]
        if left_out:
            columns.append(Column(FLAGS.user_column, may_be_empty=True, option="user_column"))
        table = read_table(format.table(path), columns, bad_rows="count")
        column, report = table.columns[FLAGS.text_column], dict(table.report)
        if left_out:
            users: Any = table.columns[FLAGS.user_column]  # A pandas.Categorical.
            all_users.update(users.categories)
            is_kept = np.asarray(~users.isin(left_out))
            report["rows of users left out"] = int((~is_kept).sum())
            column = column[is_kept]
        texts += list(column)
        reasons = "".join(f"; {count:,} {what}" for what, count in report.items() if count)
        print(f"{os.path.basename(path)}: {len(column):,} texts{reasons}", flush=True)
    absent = [user for user in left_out if user not in all_users]
    if absent:
        raise UserError(f"--leave_out_users: {absent[0]!r} has no texts.")
    return texts


if __name__ == "__main__":
    launch.run(main)
