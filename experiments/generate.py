"""Texts as a user of a FedPerC run would write them, in the user's own context or another one.

python -m experiments.generate --run_dir=results/tv_shows --user="Arya Stark" --context=Friends \
    --prompt="We must"
"""

from __future__ import annotations

import json
import pathlib
import tempfile

from absl import flags

from experiments import launch
from fedpersonal.errors import UserError

FLAGS = flags.FLAGS

flags.DEFINE_string("run_dir", "results/tv_shows", "The folder of a run of --algorithm=fedperc.")
flags.DEFINE_string("user", None, "Whose embedding.", required=True)
flags.DEFINE_string("context", None, "Which context's embedding.", required=True)
flags.DEFINE_string("prompt", "", "The beginning of the text.")
flags.DEFINE_integer("num_texts", 3, "How many texts.", lower_bound=1)
flags.DEFINE_integer("max_tokens", 24, "Tokens of a text with its prompt.", lower_bound=2)
flags.DEFINE_float("temperature", 0.7, "The higher, the more surprising.", lower_bound=0.01)
flags.DEFINE_integer("top_k", 40, "Tokens among which each is drawn.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed of the draws.", lower_bound=0)


def main() -> None:
    """Prints the texts."""
    folder = pathlib.Path(FLAGS.run_dir)
    summary_path = folder / "summary.json"
    try:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
        source = summary["base_model"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{folder} is no run of experiments.tv_shows that has ended ({error!r})"
        ) from None
    from fedpersonal.tasks.utterances.experiment import WEIGHTS

    from fedpersonal.language_models.base_model import load_base_model
    from fedpersonal.tasks.utterances.generation import find_name, generate, read_trained
    from fedpersonal.tasks.utterances.methods import build_model, freeze

    trained = read_trained(folder / WEIGHTS)
    user = find_name("user", FLAGS.user, trained.clients.tolist())
    context = find_name("context", FLAGS.context, trained.contexts.tolist())
    if summary["algorithm"] != "fedperc":
        raise UserError(f"{folder} is a run of {summary['algorithm']}; only fedperc can generate")
    base = load_base_model(source)
    with tempfile.TemporaryDirectory() as frozen_folder:
        model = build_model(
            "fedperc",
            base,
            freeze(base, frozen_folder),
            num_contexts=len(trained.contexts),
            history_length=1,
        )
        texts = generate(
            model,
            base,
            trained,
            user=user,
            context=context,
            prompt=FLAGS.prompt,
            num_texts=FLAGS.num_texts,
            max_tokens=FLAGS.max_tokens,
            temperature=FLAGS.temperature,
            top_k=min(FLAGS.top_k, base.config.vocab_size),
            seed=FLAGS.seed,
        )
    print(f"{trained.clients[user]} in {trained.contexts[context]}:")
    for text in texts:
        print(f"  {text}")


if __name__ == "__main__":
    launch.run(main)
