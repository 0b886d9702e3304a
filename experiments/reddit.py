"""Subreddits of Reddit comments, or labels of any texts by user: FURL and its configurations.

python -m experiments.reddit --text_file=path/to/comments.jsonl.gz --algorithm=furl
"""

from __future__ import annotations

from absl import flags

from experiments import common_flags, document_flags, launch, text_flags

FLAGS = flags.FLAGS

common_flags.define_common_flags(
    experiment_name="reddit",
    total_rounds=7000,
    clients_per_round=10,
    client_batch_size=16,
    client_learning_rate=0.3,
    reconstruction_learning_rate=0.3,
    rounds_per_eval=200,
    rounds_per_checkpoint=100,
)
flags.DEFINE_enum(
    "algorithm",
    "furl",
    [
        "centralized",
        "centralized_personalized",
        "fed_avg",
        "furl",
        "fed_per",
        "fed_rep",
        "lg_fed_avg",
    ],
    "Who trains, and what is each user's own.",
)
flags.DEFINE_enum(
    "local_state",
    "kept",
    ["kept", "rebuilt"],
    "Local variables: kept by users from round to round, or started afresh in each.",
)
flags.DEFINE_enum(
    "dataset",
    "auto",
    ["auto", "generated", "generated_clicks", "reddit_tfds"],
    "Texts. auto: --text_file if that is given, else reddit_comments.jsonl.gz in --data_dir, else "
    "generated comments. reddit_tfds: TensorFlow Datasets' reddit, downloaded where --data_dir "
    "does not have it yet.",
)
text_flags.define_table_flags()
document_flags.define_document_flags()
flags.DEFINE_float("dropout_rate", 0.0, "Share of drawn users that drop out.", 0.0, 0.99)
flags.DEFINE_float(
    "local_learning_rate", 0.3, "Rate of local variables and user embeddings.", lower_bound=0.0
)
flags.DEFINE_integer(
    "decay_rounds",
    0,
    "Rounds until the server's and private rates are 0; 0: constant.",
    lower_bound=0,
)
flags.DEFINE_float("server_epsilon", 1e-3, "Epsilon of adam, yogi and adagrad.", lower_bound=0.0)
flags.DEFINE_float(
    "server_initial_accumulator", 0.0, "Initial value of yogi and adagrad.", lower_bound=0.0
)
flags.DEFINE_integer("local_epochs", 1, "Passes over a user's texts in a round.", lower_bound=1)
flags.DEFINE_integer("local_only_epochs", 1, "fed_rep: passes for the local head.", lower_bound=0)
flags.DEFINE_integer("max_steps", 0, "Bound on their steps; 0: none.", lower_bound=0)
flags.DEFINE_integer(
    "reconstruction_epochs", 5, "Passes that build what a new user lacks.", lower_bound=0
)
flags.DEFINE_enum(
    "weighting", "num_examples", ["num_examples", "uniform"], "Users' weights: texts, or equal."
)
flags.DEFINE_float("max_update_norm", 0.0, "Bound on a user's update; 0: none.", lower_bound=0.0)
flags.DEFINE_integer("user_dim", 32, "Size of a user embedding.", lower_bound=1)
flags.DEFINE_integer("character_dim", 32, "Size of a character embedding.", lower_bound=1)
flags.DEFINE_integer("lstm_units", 32, "Units of each of the two LSTMs.", lower_bound=1)
flags.DEFINE_multi_integer(
    "hidden_units", [64], "Units of a hidden layer; 0: no such layer.", lower_bound=0
)
flags.DEFINE_enum("packing", "pooled", ["pooled", "stacked"], "How users of a member are executed.")

_ZERO_MEANS_NONE = ("max_steps", "max_update_norm")


def main() -> None:
    """Runs the experiment that the flags describe and prints where its results are."""
    choice = document_flags.document_choice()
    # Data mistakes show before TensorFlow is imported.
    print(choice.summary(), flush=True)
    import dataclasses

    from fedpersonal.simulation.run_folder import RunFolder
    from fedpersonal.tasks.documents.experiment import (
        DocumentOptions,
        build_experiment,
        run_experiment,
    )

    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(DocumentOptions)}
    values.update({name: values[name] or None for name in _ZERO_MEANS_NONE})
    values["hidden_units"] = tuple(units for units in values["hidden_units"] if units)
    experiment = build_experiment(choice.load(seed=FLAGS.seed), DocumentOptions(**values))
    folder = RunFolder.open(common_flags.run_folder_path(), common_flags.flag_values())
    summary = run_experiment(experiment, folder)
    test, guess = summary["test"], summary["guessing"]["users_most_frequent"]
    metric = "auc" if "auc" in test else "accuracy"
    print(
        f"test, {test['num_clients']:,} users, {test['num_examples']:,} texts: {metric} "
        f"{test[metric]:.4f}; always a user's most frequent label: accuracy {guess:.4f}"
    )
    withheld = summary["withheld"]
    if withheld is not None:
        area = f"; auc then {withheld['auc']:.4f}" if "auc" in withheld else ""
        print(
            f"{withheld['num_clients']:,} users who never took part: accuracy "
            f"{withheld['before']['accuracy']:.4f} before and {withheld['accuracy']:.4f} after "
            f"they rebuild what they lack{area}"
        )
    print(
        f"{summary['rounds']} rounds in {summary['train_wall_seconds']:.1f} s, median round "
        f"{1000 * summary['median_round_seconds']:.0f} ms; results in {folder.path}"
    )


if __name__ == "__main__":
    launch.run(main)
