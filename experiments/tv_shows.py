"""FedPerC and its baselines on utterances of characters, or of Reddit's users.

python -m experiments.tv_shows --flagfile=experiments/presets/tv_shows_quick.flags
"""

from __future__ import annotations

import pathlib

from absl import flags

from experiments import common_flags, launch, text_flags, utterance_flags

FLAGS = flags.FLAGS

common_flags.define_common_flags(
    total_rounds=40,
    clients_per_round=1000,
    client_batch_size=15,
    client_learning_rate=0.001,
    server_learning_rate=1.0,
    reconstruction_learning_rate=0.001,
    rounds_per_eval=5,
    rounds_per_checkpoint=10,
)
flags.DEFINE_enum(
    "algorithm",
    "fedperc",
    [
        "fedperc",
        "fedperc_generated",
        "split_learning",
        "split_learning_fresh",
        "meta_learning",
        "meta_learning_fresh",
    ],
    "What trains. fedperc is also tested frozen, without fine-tuning; heads start as the base "
    "model's, or fresh.",
)
text_flags.define_table_flags()
utterance_flags.define_utterance_flags()
flags.DEFINE_float("dropout_rate", 0.0, "Share of drawn users that drop out.", 0.0, 0.99)
flags.DEFINE_integer("local_steps", 10, "A user's steps in a round.", lower_bound=1)
flags.DEFINE_float("proximal", 1.0, "Weight of FedProx' term.", lower_bound=0.0)
flags.DEFINE_integer(
    "decay_rounds", 0, "Rounds until the server's rate is 0; 0: constant.", lower_bound=0
)
flags.DEFINE_integer("finetuning_steps", 15, "A user's steps before a test.", lower_bound=0)
flags.DEFINE_float("finetuning_learning_rate", 0.001, "Adam's rate in them.", lower_bound=0.0)
flags.DEFINE_enum(
    "new_users",
    "noisy_mean",
    ["noisy_mean", "fresh"],
    "Where new users start: the noisy mean of the others' embeddings, or as everybody.",
)
flags.DEFINE_float("noise_multiplier", 0.1, "Noise of that mean, by --clip_norm.", lower_bound=0.0)
flags.DEFINE_float("clip_norm", 1.0, "Bound on what one user adds to it.", lower_bound=1e-9)
flags.DEFINE_integer("history_length", 96, "Tokens that a generator reads.", lower_bound=1)
flags.DEFINE_enum(
    "weighting", "uniform", ["uniform", "num_examples"], "Users' weights: equal, or utterances."
)


def main() -> None:
    """Runs the experiment that the flags describe and prints where its results are."""
    choice = utterance_flags.utterance_choice(FLAGS.dataset)
    # Data mistakes show before TensorFlow is imported.
    print(choice.summary(), flush=True)
    import dataclasses

    from fedpersonal.simulation.run_folder import RunFolder
    from fedpersonal.tasks.utterances.base_model_choice import find_base_model
    from fedpersonal.tasks.utterances.experiment import (
        UtteranceOptions,
        build_experiment,
        encode_with,
        run_experiment,
    )

    values = {field.name: FLAGS[field.name].value for field in dataclasses.fields(UtteranceOptions)}
    options = UtteranceOptions(**values)
    base = find_base_model(FLAGS.base_model, choice, cache_dir=FLAGS.base_model_dir)
    data = choice.load(
        encode_with(base),
        withheld=FLAGS.split == "withheld",
        length=FLAGS.text_length,
        padding=0,
        end=base.config.eos_token_id,
        too_long=FLAGS.too_long,
        seed=FLAGS.seed,
    )
    experiment = build_experiment(
        data, base, options, frozen_folder=pathlib.Path(FLAGS.base_model_dir) / "frozen"
    )
    folder = RunFolder.open(common_flags.run_folder_path(), common_flags.flag_values())
    summary = run_experiment(experiment, folder)
    tested = ", ".join(
        f"{results['perplexity']:.2f} ({samples})"
        for samples, results in summary["by_samples"].items()
    )
    print(
        f"test, {summary['test']['num_clients']:,} {FLAGS.split} users: perplexity {tested}, "
        "in brackets the utterances that each has trained on before"
    )
    print(
        f"{summary['rounds']} rounds in {summary['train_wall_seconds']:.1f} s, median round "
        f"{1000 * summary['median_round_seconds']:.0f} ms; results in {folder.path}"
    )


if __name__ == "__main__":
    launch.run(main)
