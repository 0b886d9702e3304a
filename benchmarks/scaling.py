"""How a FedRecon round's time grows with clients a round and with items.

    python -m benchmarks.scaling

Prints one line of JSON a measurement: the median seconds of a packed round on generated ratings.
"""

from __future__ import annotations

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_list("clients", ["10", "30", "100", "300", "1000"], "Clients a round, at 3,706 items.")
flags.DEFINE_list("items", ["1000", "3706", "10000", "100000"], "Items, at 100 clients a round.")
flags.DEFINE_integer("rounds", 10, "Rounds timed, each.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed.", lower_bound=0)

FEW_ITEMS = 3706
FEW_CLIENTS = 100


def main() -> None:
    """Times every combination."""
    import json
    import statistics
    import time

    from benchmarks.rating_data import generate, paper_options, paper_trainer
    from fedpersonal.local_state.rounds import Rounds

    def seconds_a_round(clients: int, items: int) -> float:
        train = generate(num_items=items, seed=FLAGS.seed).to_client_dataset()
        options = paper_options(clients_per_round=clients)
        trainer = paper_trainer(train, num_items=items, options=options)
        rounds = Rounds(trainer.process)
        state = rounds.initialize()
        seconds = []
        for round_number in range(FLAGS.rounds + 1):
            cohort = trainer.cohort(round_number)
            begin = time.perf_counter()
            state = rounds.next(state, cohort).state
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds[1:])  # The first one compiles.

    pairs = [(int(clients), FEW_ITEMS) for clients in FLAGS.clients]
    pairs += [(FEW_CLIENTS, int(items)) for items in FLAGS.items]
    for clients, items in dict.fromkeys(pairs):
        seconds = seconds_a_round(clients, items)
        print(
            json.dumps({"clients": clients, "items": items, "seconds": round(seconds, 5)}),
            flush=True,
        )


if __name__ == "__main__":
    launch.run(main)
