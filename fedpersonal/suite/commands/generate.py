r"""Generates texts for a user of a FedPerC run, in the user's context or in another one.

fedpersonal generate --run_dir=results/tv_shows --user="Arya Stark" --context=Friends \
    --prompt="We must"

It stores them in `generated.json` of the run's folder, for a report with --show_clients.
"""

from __future__ import annotations

import tempfile

from absl import flags

from fedpersonal import runtime
from fedpersonal.errors import UserError, one_line
from fedpersonal.suite.commands import launch

FLAGS = flags.FLAGS

flags.DEFINE_string("run_dir", "results/tv_shows", "The folder of a run of --method=fedperc.")
flags.DEFINE_string("user", None, "The user, whose embedding is used.", required=True)
flags.DEFINE_string("context", None, "The context, whose embedding is used.", required=True)
flags.DEFINE_string("prompt", "", "The beginning of the text.")
flags.DEFINE_integer("num_texts", 3, "Number of texts.", lower_bound=1)
flags.DEFINE_integer("max_tokens", 24, "Most tokens of a text with its prompt.", lower_bound=2)
flags.DEFINE_float("temperature", 0.7, "Sampling temperature.", lower_bound=0.01)
flags.DEFINE_integer("top_k", 40, "Number of likeliest tokens to sample from.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed of the sampled tokens.", lower_bound=0)


def main() -> None:
    """Prints the texts."""
    with runtime.quick_imports():
        from fedpersonal.report.samples import add_texts
        from fedpersonal.runs.folder import RunFolder
        from fedpersonal.runs.record import check_rounds
        from fedpersonal.runs.saved import read_saved_model
        from fedpersonal.runs.store import LOCAL_STATE, read_all
        from fedpersonal.suite.models.gpt2 import load_base_model
        from fedpersonal.suite.tasks.utterances.generation import find_name, generate
        from fedpersonal.suite.tasks.utterances.methods import EMBEDDING
        from fedpersonal.suite.tasks.utterances.models import (
            build_language_model,
            write_frozen_base,
        )

    folder = RunFolder.read(FLAGS.run_dir)
    method = folder.config["options"].get("method")
    if method != "fedperc":
        raise UserError(f"{folder.path} is a run of {one_line(method)}; only fedperc can generate.")
    check_rounds(folder.path)
    saved, options = read_saved_model(folder.path), folder.config["options"]
    try:
        source, contexts = folder.summary["base_model"], saved.about["names"]["context"]
        is_whole = isinstance(source, str) and all(isinstance(name, str) for name in contexts)
    except (KeyError, TypeError):
        is_whole = False
    if not is_whole:
        raise UserError(
            f"{folder.path} is no run of utterances, or is damaged: its base model or its "
            "contexts are missing."
        )
    clients, kept = read_all(folder.path / LOCAL_STATE)
    user = find_name("user", FLAGS.user, clients)
    context = find_name("context", FLAGS.context, contexts)
    base = load_base_model(source, revision=options.get("base_model_revision"))
    with tempfile.TemporaryDirectory() as frozen_folder:
        model = build_language_model(
            "prefix",
            base,
            write_frozen_base(base, frozen_folder),
            local_layers=(EMBEDDING,),
            num_contexts=len(contexts),
            history_length=1,
        )
        texts = generate(
            model,
            base,
            {**saved.weights, **{name: value[user] for name, value in kept.items()}},
            context=context,
            prompt=FLAGS.prompt,
            num_texts=FLAGS.num_texts,
            max_tokens=FLAGS.max_tokens,
            temperature=FLAGS.temperature,
            top_k=min(FLAGS.top_k, base.config.vocab_size),
            seed=FLAGS.seed,
        )
    print(f"{clients[user]} in {contexts[context]}:")
    for text in texts:
        print(f"  {text}")
    rounds = folder.summary["rounds"]
    user_id, context_id = str(clients[user]), contexts[context]
    add_texts(folder.path, user_id, context_id, FLAGS.prompt, texts, rounds=rounds)


if __name__ == "__main__":
    launch.run(main)
