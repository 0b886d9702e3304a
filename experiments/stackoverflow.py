"""Next word prediction on Stack Overflow, or on any table of texts by user: FedRecon and baselines.

python -m experiments.stackoverflow --text_file=path/to/texts.jsonl.gz --algorithm=fed_recon
"""

from __future__ import annotations

from absl import flags

from experiments import common_flags, launch, text_flags

FLAGS = flags.FLAGS

common_flags.define_common_flags(
    experiment_name="stackoverflow",
    total_rounds=2500,
    clients_per_round=200,
    client_batch_size=16,
    client_learning_rate=0.3,
    server_optimizer=None,
    server_learning_rate=None,
)
flags.DEFINE_enum(
    "algorithm",
    "fed_recon",
    [
        "fed_yogi",
        "fed_adam",
        "fed_avg",
        "fed_recon",
        "oov_finetuning",
        "full_finetuning",
        "fed_recon_finetuning",
    ],
    "How to train and how to personalise.",
)
flags.DEFINE_enum(
    "dataset",
    "auto",
    ["auto", "generated", "stack_overflow"],
    "Sentences. auto: --text_file if that is given, else what is in --data_dir (TFF's Stack "
    "Overflow, or stack_exchange.jsonl.gz), else a generated corpus. stack_overflow: TFF's own, "
    "downloaded (many gigabytes) where --data_dir does not have it yet.",
)
text_flags.define_table_flags()
text_flags.define_sentence_flags()
flags.DEFINE_integer("vocab_size", 10_000, "Known words.", lower_bound=1)
flags.DEFINE_integer(
    "num_oov_buckets", None, "Hash buckets of other words. [default: the algorithm's: 1 or 500]"
)
flags.DEFINE_integer("sequence_length", 20, "Tokens of a sentence.", lower_bound=1)
flags.DEFINE_float("dropout_rate", 0.0, "Share of drawn clients that drop out.", 0.0, 0.99)

flags.DEFINE_integer("embedding_dim", 96, "Size of an embedding.", lower_bound=1)
flags.DEFINE_integer("lstm_units", 670, "Units of the LSTM.", lower_bound=1)
flags.DEFINE_integer("projection_dim", 96, "Size of the projection.", lower_bound=1)

flags.DEFINE_float("server_epsilon", 1e-3, "Epsilon of adam, yogi and adagrad.", lower_bound=0.0)
flags.DEFINE_float(
    "server_initial_accumulator", 0.0, "Initial value of yogi and adagrad.", lower_bound=0.0
)
flags.DEFINE_enum(
    "split",
    "aggregated",
    ["aggregated", "skip", "shared"],
    "Support and query sets: halves, alternate batches, or both all the data.",
)
flags.DEFINE_integer("reconstruction_epochs", 5, "Passes over the support set.", lower_bound=0)
flags.DEFINE_integer("max_reconstruction_steps", 100, "Bound on them; 0: none.", lower_bound=0)
flags.DEFINE_integer("local_epochs", 5, "Passes over the query set.", lower_bound=1)
flags.DEFINE_integer("max_local_steps", 100, "Bound on their steps; 0: none.", lower_bound=0)
flags.DEFINE_float(
    "finetuning_learning_rate", 0.1, "Rate of fine-tuning the whole model.", lower_bound=0.0
)
flags.DEFINE_integer("finetuning_epochs", 5, "Passes over the support set.", lower_bound=0)
flags.DEFINE_integer("max_finetuning_steps", 100, "Bound on them; 0: none.", lower_bound=0)
flags.DEFINE_bool("joint_training", False, "Move local variables in the update phase too.")
flags.DEFINE_enum(
    "weighting", "num_examples", ["num_examples", "uniform"], "Clients' weights: tokens, or equal."
)
flags.DEFINE_float("max_update_norm", 0.0, "Bound on a client's update; 0: none.", lower_bound=0.0)

_ZERO_MEANS_NONE = (
    "max_reconstruction_steps",
    "max_local_steps",
    "max_finetuning_steps",
    "max_update_norm",
)


def main() -> None:
    """Runs the experiment that the flags describe and prints where its results are."""
    import dataclasses

    from fedpersonal.simulation.run_folder import RunFolder
    from fedpersonal.tasks.next_word.experiment import (
        NextWordOptions,
        build_experiment,
        run_experiment,
    )

    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(NextWordOptions)}
    values.update({name: values[name] or None for name in _ZERO_MEANS_NONE})
    options = NextWordOptions(**values).settled()
    choice = text_flags.text_choice()
    print(choice.summary(), flush=True)
    experiment = build_experiment(choice.load(options), options)
    folder = RunFolder.open(common_flags.run_folder_path(), common_flags.flag_values())
    summary = run_experiment(experiment, folder)
    test, name = summary["test"], "accuracy_without_oov_or_eos"
    print(
        f"test, {test['num_clients']:,} users, {test['num_examples']:,} sentences: {name} "
        f"{test['before'][name]:.4f} before and {test[name]:.4f} after personalisation"
    )
    print(
        f"{summary['rounds']} rounds in {summary['train_wall_seconds']:.1f} s, median round "
        f"{1000 * summary['median_round_seconds']:.0f} ms; results in {folder.path}"
    )


if __name__ == "__main__":
    launch.run(main)
