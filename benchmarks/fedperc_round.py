"""A round of FedPerC around a small frozen language model, packed and a client a member.

    python -m benchmarks.fedperc_round

Every user takes 10 steps on 15 random utterances, as long as those of the TV shows and in as many
places, by the same options in both executions, round after round in turn. The base model is
drawn at random: 4 layers of 128, 4096 tokens. Prints one line of JSON: seconds a round (medians)
and their ratio, the largest difference between the weights that result, the bytes of the base,
which a worker maps once, and those that a round sends and returns for all users.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_integer("rounds", 5, "Rounds timed, of each.", lower_bound=1)
flags.DEFINE_integer("users", 19, "Users, all in every round.", lower_bound=1)
flags.DEFINE_integer("layers", 4, "Layers of the base model.", lower_bound=1)
flags.DEFINE_integer("dim", 128, "Its size, a multiple of 4.", lower_bound=4)
flags.DEFINE_integer("tokens", 4096, "Its tokens.", lower_bound=2)
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)

STEPS = 10
UTTERANCES = 15
CONTEXTS = 2
# Tokens of an utterance of the TV shows, its end among them: 5, 25, 50, 75 and 95 % have at most 4,
# 7, 10, 15 and 27. A log-normal distribution with this median and spread has the same percentiles.
PLACES = 32
MEDIAN = 10
SPREAD = 0.58


def main() -> None:
    """Times both and prints the JSON line."""
    import json
    import pathlib
    import statistics
    import tempfile
    import time

    import numpy as np
    from transformers.models.gpt2.configuration_gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2LMHeadModel

    from fedpersonal.algorithms.method import Layers
    from fedpersonal.data.client_dataset import ClientDataset
    from fedpersonal.language_models.base_model import BaseModel
    from fedpersonal.local_state.rounds import Rounds
    from fedpersonal.local_state.store import LocalStateStore
    from fedpersonal.process.boundary import total_bytes
    from fedpersonal.tasks.utterances.methods import METHODS
    from fedpersonal.tasks.utterances.model import build_language_model, freeze
    from fedpersonal.tasks.utterances.task import TASK
    from fedpersonal.trainer import Trainer

    random = np.random.default_rng(FLAGS.seed)
    config = GPT2Config(
        vocab_size=FLAGS.tokens,
        n_positions=PLACES + 1,
        n_embd=FLAGS.dim,
        n_layer=FLAGS.layers,
        n_head=4,
        bos_token_id=FLAGS.tokens - 1,
        eos_token_id=FLAGS.tokens - 1,
    )
    gpt2 = TFGPT2LMHeadModel(config)
    gpt2.build_in_name_scope()
    weights = {
        variable.name.split("/transformer/", 1)[1].split(":")[0]: variable.numpy()
        for variable in gpt2.weights
    }
    base = BaseModel("random", "random", config, weights, tokenizer=None)

    count = FLAGS.users * STEPS * UTTERANCES
    text = random.integers(0, FLAGS.tokens, [count, PLACES]).astype(np.int32)
    lengths = np.clip(np.rint(random.lognormal(np.log(MEDIAN), SPREAD, count)), 3, PLACES)
    is_token = np.arange(PLACES) < lengths[:, np.newaxis]
    train = ClientDataset(
        client_ids=np.array([f"user{user}" for user in range(FLAGS.users)], object),
        offsets=np.arange(FLAGS.users + 1) * (STEPS * UTTERANCES),
        features={
            "text": text,
            "user": np.zeros(count, np.int32),
            "context": random.integers(0, CONTEXTS, count).astype(np.int32),
        },
        labels=np.where(is_token, text, np.int32(-1)),
    )
    method, options = METHODS[0], TASK.settle(TASK.options(algorithm="fedperc"))
    executions = ("packed", "per_client")
    seconds: dict[str, list[float]] = {execution: [] for execution in executions}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        model = build_language_model(
            method.model,
            base,
            freeze(base, path / "frozen"),
            local_layers=method.own_layers,
            num_contexts=CONTEXTS,
            history_length=options.history_length,
        )
        trainers, runs, states = {}, {}, {}
        for execution in executions:
            trainers[execution] = Trainer(
                model,
                method.build(options, Layers()),
                train,
                clients_per_round=FLAGS.users,
                batch_size=UTTERANCES,
                local_steps=STEPS,
                shards=None if execution == "packed" else FLAGS.users,
                packing="pooled" if execution == "packed" else "stacked",
                seed=FLAGS.seed,
            )
            store = LocalStateStore.open(path / execution, model.local_variables)
            runs[execution] = Rounds(trainers[execution].process, store)
            states[execution] = runs[execution].initialize()
        for round_number in range(1, FLAGS.rounds + 2):
            for execution, rounds in runs.items():
                cohort = trainers[execution].cohort(round_number)
                begin = time.perf_counter()
                states[execution] = rounds.next(states[execution], cohort).state
                seconds[execution].append(time.perf_counter() - begin)
        packed, per_client = (
            states[execution].global_model_weights.trainable for execution in executions
        )
        crossings = trainers["packed"].crossings
        # The first round compiles.
        medians = {name: statistics.median(own[1:]) for name, own in seconds.items()}
        result = {
            "users": FLAGS.users,
            "mean_tokens": round(float(lengths.mean()), 1),
            "packed_seconds": round(medians["packed"], 4),
            "per_client_seconds": round(medians["per_client"], 4),
            "ratio": round(medians["per_client"] / medians["packed"], 2),
            "largest_difference": max(
                float(np.abs(packed[name] - per_client[name]).max()) for name in packed
            ),
            "frozen_bytes_once": model.frozen.num_bytes,
            "sent_bytes_a_round": FLAGS.users * total_bytes(crossings, "broadcast"),
            "returned_bytes_a_round": FLAGS.users * total_bytes(crossings, "aggregate"),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    launch.run(main)
