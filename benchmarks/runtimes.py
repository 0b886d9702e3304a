"""Rounds in this process beside rounds in TFF's own runtime, task by task.

    python -m benchmarks.runtimes --cases=items,kept

All runtimes run the same rounds of the same trainer, in turn. Prints a table and a line of JSON a
case: medians, and the largest difference between the global weights that result and those in TFF's.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

# What runs, by preset; `items` and `kept` are ratings of MovieLens-1M's size.
PRESETS = {
    "furl": "reddit_quick",
    "next_word": "stackoverflow_generated",
    "fedperc": "tv_shows_quick",
}
CASES = ("items", "kept", *PRESETS)

flags.DEFINE_list("cases", list(CASES), "Of " + ", ".join(CASES) + ".")
flags.DEFINE_list("runtimes", ["tff", "plain", "compiled"], "TFF's own; local ones by compiling.")
flags.DEFINE_integer("items", 100_000, "Items of the case `items`.", lower_bound=1)
flags.DEFINE_integer("rounds", 10, "Rounds timed, of each.", lower_bound=3)
flags.DEFINE_integer("shards", None, "As of the experiments. [default: one a processor]")


def main() -> None:
    """Times every case."""
    import importlib
    import json

    from benchmarks.rating_data import generate, paper_options, paper_trainer
    from benchmarks.side_by_side import Ours, as_table, summarize, time_rounds
    from experiments.option_flags import read_flagfile
    from experiments.papers.reproduction import PRESETS as PRESET_FOLDER
    from fedpersonal.tasks.experiment import build_experiment
    from fedpersonal.tasks.ratings.task import TASK as RATINGS
    from fedpersonal.trainer import Trainer

    tasks = {"furl": "documents", "next_word": "next_word", "fedperc": "utterances"}

    def trainer_of(case: str) -> Trainer:
        if case == "items":
            train = generate(num_items=FLAGS.items, seed=0).to_client_dataset()
            return paper_trainer(
                train, num_items=FLAGS.items, options=paper_options(), shards=FLAGS.shards
            )
        if case == "kept":
            task, source = RATINGS, generate(num_items=3706, seed=0)
            options = task.options(algorithm="furl", clients_per_round=100, client_batch_size=5)
        else:
            task = importlib.import_module(f"fedpersonal.tasks.{tasks[case]}.task").TASK
            path = PRESET_FOLDER / f"{PRESETS[case]}.flags"
            options = task.options(**read_flagfile(path, task.options))
            source = task.read(options)
        return build_experiment(task, source, options, shards=FLAGS.shards).trainer

    for case in FLAGS.cases:
        trainer = trainer_of(case)
        sides = {runtime: Ours(trainer, runtime) for runtime in FLAGS.runtimes}
        base = FLAGS.runtimes[0]
        summary = summarize(sides, time_rounds(sides, FLAGS.rounds), base=base)
        print(f"\n{case}\n{as_table(summary, base=base)}")
        print(json.dumps({"case": case, "rounds": FLAGS.rounds, "sides": summary}), flush=True)


if __name__ == "__main__":
    launch.run(main)
