"""FedRecon and its baselines on MovieLens, or on any table of ratings.

python -m experiments.movielens --total_rounds=500 --data_dir=path/to/ml-1m
"""

from __future__ import annotations

from absl import flags

from experiments import common_flags, launch

FLAGS = flags.FLAGS

common_flags.define_common_flags(experiment_name="movielens")
flags.DEFINE_enum(
    "algorithm", "fed_recon", ["fed_recon", "fed_avg", "centralized"], "What to train with."
)
flags.DEFINE_enum(
    "dataset",
    "auto",
    ["auto", "movielens_100k", "movielens_1m", "movielens_1m_tfds"],
    "auto: MovieLens-1M from --data_dir if that is given, else MovieLens-100K, which is installed.",
)
flags.DEFINE_string("ratings_file", None, "An own table of ratings, in place of --dataset.")
flags.DEFINE_string("user_column", "user", "Its column of users.")
flags.DEFINE_string("item_column", "item", "Its column of items.")
flags.DEFINE_string("rating_column", "rating", "Its column of ratings.")
flags.DEFINE_string("time_column", "time", "Its column of times, seconds or dates; may be missing.")
flags.DEFINE_integer("min_ratings", 2, "Users of the table with fewer are dropped.", lower_bound=1)
flags.DEFINE_enum(
    "protocol",
    "unseen_users",
    ["unseen_users", "seen_users"],
    "Hold out users, whose local variables are rebuilt, or each user's last ratings.",
)
flags.DEFINE_integer("max_ratings_per_user", 300, "Ratings kept of a user; 0: all.", lower_bound=0)
flags.DEFINE_float("dropout_rate", 0.0, "Share of drawn clients that drop out.", 0.0, 0.99)
flags.DEFINE_integer("pool_batch_size", 100, "Examples a batch of centralized.", lower_bound=1)

flags.DEFINE_integer("embedding_dim", 50, "Size of an embedding, K.", lower_bound=1)
flags.DEFINE_float("embedding_stddev", 0.1, "Deviation of initial embeddings.", lower_bound=0.0)
flags.DEFINE_bool("use_biases", False, "Add a local user bias and a global item bias.")
flags.DEFINE_float("rating_offset", 0.0, "Constant added to each prediction.")
flags.DEFINE_float("l2", 0.0, "Penalty of the embeddings in use.", lower_bound=0.0)

flags.DEFINE_float("server_epsilon", 1e-3, "Epsilon of adam, yogi and adagrad.", lower_bound=0.0)
flags.DEFINE_enum(
    "reconstruction", "gradient", ["gradient", "ridge"], "Gradient steps, or exact least squares."
)
flags.DEFINE_enum(
    "split",
    "skip",
    ["skip", "aggregated", "shared"],
    "Support and query sets: alternate batches, halves, or both all the data.",
)
flags.DEFINE_integer("reconstruction_epochs", 5, "Passes over the support set.", lower_bound=0)
flags.DEFINE_integer("max_reconstruction_steps", 50, "Bound on them; 0: none.", lower_bound=0)
flags.DEFINE_integer("local_epochs", 1, "Passes over the query set.", lower_bound=1)
flags.DEFINE_integer("max_local_steps", 50, "Bound on their steps; 0: none.", lower_bound=0)
flags.DEFINE_bool("joint_training", False, "Move local variables in the update phase too.")
flags.DEFINE_float("ridge_l2", 10.0, "Penalty of ridge reconstruction.", lower_bound=1e-6)
flags.DEFINE_float("ridge_bias_l2", None, "The same for the user bias. [default: --ridge_l2]")
flags.DEFINE_enum(
    "weighting", "num_examples", ["num_examples", "uniform"], "Weight of a client's update."
)

flags.DEFINE_float("max_update_norm", 0.0, "Bound on a client's update; 0: none.", lower_bound=0.0)

_ZERO_MEANS_NONE = (
    "max_ratings_per_user",
    "max_reconstruction_steps",
    "max_local_steps",
    "max_update_norm",
)


def load_ratings():
    """Loads the ratings that the flags name."""
    from fedpersonal.data.ratings import movielens
    from fedpersonal.data.ratings.ratings import read_ratings
    from fedpersonal.data.sources import FILE, find_source

    source, path = find_source(
        movielens.SOURCES,
        dataset=FLAGS.dataset,
        file=FLAGS.ratings_file,
        data_dir=FLAGS.data_dir,
    )
    if source == FILE:
        return read_ratings(
            path,
            user_column=FLAGS.user_column,
            item_column=FLAGS.item_column,
            rating_column=FLAGS.rating_column,
            time_column=FLAGS.time_column,
            min_ratings=FLAGS.min_ratings,
        )
    return {
        "movielens_100k": lambda _: movielens.load_movielens_100k(),
        "movielens_1m": movielens.load_movielens_1m,
        "movielens_1m_tfds": movielens.load_movielens_1m_tfds,
    }[source](path)


def main() -> None:
    """Runs the experiment that the flags describe and prints where its results are."""
    ratings = load_ratings()
    # Data mistakes show before TensorFlow is imported.
    import dataclasses

    from fedpersonal.simulation.run_folder import RunFolder
    from fedpersonal.tasks.ratings.experiment import RatingOptions, build_experiment, run_experiment

    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(RatingOptions)}
    values.update({name: values[name] or None for name in _ZERO_MEANS_NONE})
    print(ratings.summary(), flush=True)
    experiment = build_experiment(ratings, RatingOptions(**values))
    folder = RunFolder.open(common_flags.run_folder_path(), common_flags.flag_values())
    summary = run_experiment(experiment, folder)
    test = summary["test"]
    print(
        f"test, {test['num_clients']:,} users, {test['num_examples']:,} ratings: "
        + ", ".join(
            f"{name} {test[name]:.4f}" for name in ("rmse", "mae", "accuracy", "hr@10", "ndcg@10")
        )
    )
    print(
        f"{summary['rounds']} rounds in {summary['train_wall_seconds']:.1f} s, median round "
        f"{1000 * summary['median_round_seconds']:.0f} ms; results in {folder.path}"
    )


if __name__ == "__main__":
    launch.run(main)
