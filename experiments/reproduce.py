"""Reproduces a table or figure of a paper: runs what is missing, prints paper beside measured.

python -m experiments.reproduce --target=table1 --data_dir=path/to/ml-1m
python -m experiments.reproduce --target=table2 --text_file=path/to/texts.jsonl.gz
python -m experiments.reproduce --target=fedperc_tables --data_dir=path/to/tv_shows
"""

from __future__ import annotations

from absl import flags

from experiments import document_flags, launch, text_flags, utterance_flags

FLAGS = flags.FLAGS

flags.DEFINE_enum(
    "target",
    "table1",
    ["table1", "table2", "figure2", "figure3", "table3", "fedperc_tables"],
    "Of Federated Reconstruction: table1 is rating prediction, table2 and figure2 next word "
    "prediction, figure3 both. Of FURL: table3, with its figures, document classification. Of "
    "FedPerC: fedperc_tables, all of its tables, utterances.",
)
flags.DEFINE_enum(
    "dataset",
    "auto",
    ["auto", "generated", "stack_overflow", "generated_clicks", "reddit_tfds"],
    "Texts. auto: --text_file, else what is in --data_dir, else generated ones. stack_overflow, "
    "for next word prediction: TFF's own, downloaded. generated_clicks, and reddit_tfds, "
    "TensorFlow Datasets' own: for table3.",
)
flags.DEFINE_string(
    "data_dir",
    None,
    "table1: the folder of MovieLens-1M. [default: MovieLens-100K] table3: the folder of "
    "reddit_comments.jsonl.gz. [default: generated comments] fedperc_tables: the folder of "
    "tv_shows.jsonl.gz. [default: generated dialogues] Others: the folder of TFF's Stack "
    "Overflow or of stack_exchange.jsonl.gz. [default: a generated corpus]",
)
flags.DEFINE_list(
    "datasets",
    [],
    "fedperc_tables: some of tv_shows, reddit, generated. [default: --text_file, else tv_shows of "
    "--data_dir, else generated]",
)
flags.DEFINE_string(
    "movielens_dir", None, "figure3: the folder of MovieLens-1M. [default: MovieLens-100K]"
)
flags.DEFINE_string("output_dir", None, "Where tables, figures go. [default: results/<target>]")
flags.DEFINE_string(
    "runs_dir",
    None,
    "Where the runs of table2 are, which figure2 and figure3 share. [default: --output_dir if "
    "given, else results/table2]",
)
flags.DEFINE_integer(
    "seeds",
    None,
    "Runs a row, each with a seed and a split of its own. [default: 3; of figure3: 1]",
    lower_bound=1,
)
flags.DEFINE_float("scale_rounds", 1.0, "Share of the rounds to run, for a quick look.", 0.001)

flags.DEFINE_enum(
    "preset",
    "auto",
    ["auto", "quick", "paper"],
    "Hyperparameters of texts. auto: of next word prediction, paper for TFF's Stack Overflow, else "
    "quick; of the others, quick for generated texts, else paper.",
)
flags.DEFINE_list(
    "vocab_sizes",
    None,
    "Known words, 1000,5000,10000 if not given; figure2 takes the first, or the largest of these "
    "three that there are words for.",
)
flags.DEFINE_list(
    "rows", [], "table2, table3: the rows wanted, by name. [default: all of the paper's]"
)
text_flags.define_table_flags()
text_flags.define_sentence_flags(min_sentences=32)
document_flags.define_document_flags()
utterance_flags.define_selection_flags()


def main() -> None:
    """Runs what is missing and prints the table."""
    output_dir = FLAGS.output_dir or f"results/{FLAGS.target}"
    target = {
        "table1": _table1,
        "table2": _table2,
        "figure2": _figure2,
        "figure3": _figure3,
        "table3": _table3,
        "fedperc_tables": _fedperc_tables,
    }
    print(target[FLAGS.target](output_dir))
    is_drawn = FLAGS.target.startswith(("figure", "fedperc"))
    files = "png, .csv, .md and .json" if is_drawn else "md and .json"
    print(f"written to {output_dir}/{FLAGS.target}.{files}")


def _table1(output_dir: str) -> str:
    ratings = _load_movielens(FLAGS.data_dir)
    from experiments.papers.fedrecon import table1

    seeds = _seeds()
    table = table1.run(ratings, output_dir, seeds=seeds, scale_rounds=FLAGS.scale_rounds)
    return table1.as_markdown(table, ratings.name, len(seeds))


def _table2(output_dir: str) -> str:
    from experiments.papers.fedrecon import table2

    sizes = _vocab_sizes() or table2.VOCAB_SIZES
    rows = table2.choose_rows(FLAGS.rows)
    return table2.run(*_text(), output_dir, rows=rows, vocab_sizes=sizes, **_common())


def _figure2(output_dir: str) -> str:
    from experiments.papers.fedrecon import figure2

    (size, *_) = _vocab_sizes() or [None]
    return figure2.run(*_text(), output_dir, vocab_size=size, **_common())


def _figure3(output_dir: str) -> str:
    from experiments.papers.fedrecon import figure3, table1
    from experiments.papers.fedrecon.rating_runs import MovieLens

    return figure3.run(
        *_text(),
        MovieLens(FLAGS.movielens_dir),
        table1.FED_RECON,
        output_dir,
        vocab_sizes=_vocab_sizes() or figure3.VOCAB_SIZES,
        **_common(),
    )


def _table3(output_dir: str) -> str:
    choice = document_flags.document_choice()
    print(choice.summary(), flush=True)
    from experiments.papers.furl import table3
    from experiments.papers.furl.presets import PRESETS

    automatic = "quick" if choice.source.startswith("generated") else "paper"
    return table3.run(
        choice,
        PRESETS[automatic if FLAGS.preset == "auto" else FLAGS.preset],
        output_dir,
        seeds=_seeds(),
        rows=table3.choose_rows(FLAGS.rows),
        scale_rounds=FLAGS.scale_rounds,
    )


def _fedperc_tables(output_dir: str) -> str:
    choices = [
        utterance_flags.utterance_choice(name)
        for name in dict.fromkeys(FLAGS.datasets or [FLAGS.dataset])
    ]
    for choice in choices:
        print(choice.summary(), flush=True)
    from fedpersonal.tasks.utterances.base_model_choice import find_base_model

    from experiments.papers.fedperc import tables as fedperc_tables
    from experiments.papers.fedperc.presets import PRESETS
    from experiments.papers.fedperc.runs import UtteranceSource

    bases = [
        find_base_model(FLAGS.base_model, choice, cache_dir=FLAGS.base_model_dir)
        for choice in choices
    ]
    frozen_folder = f"{FLAGS.base_model_dir}/frozen"
    is_generated = all(choice.source == "generated" for choice in choices)
    automatic = "quick" if is_generated else "paper"
    return fedperc_tables.run(
        [
            UtteranceSource(choice, base.source, frozen_folder)
            for choice, base in zip(choices, bases)
        ],
        PRESETS[automatic if FLAGS.preset == "auto" else FLAGS.preset],
        output_dir,
        seeds=_seeds(),
        scale_rounds=FLAGS.scale_rounds,
    )


def _common() -> dict:
    return {
        "seeds": _seeds(),
        "scale_rounds": FLAGS.scale_rounds,
        "runs_dir": FLAGS.runs_dir or FLAGS.output_dir or "results/table2",
    }


def _seeds() -> range:
    return range(FLAGS.seeds or (1 if FLAGS.target == "figure3" else 3))


def _vocab_sizes() -> list[int]:
    from fedpersonal.errors import UserError

    given = FLAGS.vocab_sizes or []
    if not all(size.isdigit() and int(size) for size in given):
        raise UserError(f"--vocab_sizes={','.join(given)}: whole numbers above 0 are needed.")
    return list(dict.fromkeys(map(int, given)))


def _load_movielens(folder):
    from fedpersonal.data.ratings import movielens

    return movielens.load_movielens_1m(folder) if folder else movielens.load_movielens_100k()


def _text():
    """Returns the sentences and the hyperparameters that the flags name."""
    from experiments.papers.fedrecon.next_word_presets import PRESETS

    choice = text_flags.text_choice()
    automatic = "paper" if choice.is_the_papers else "quick"
    return choice, PRESETS[automatic if FLAGS.preset == "auto" else FLAGS.preset]


if __name__ == "__main__":
    launch.run(main)
