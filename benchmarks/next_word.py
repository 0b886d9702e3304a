"""One FedRecon round and one evaluation of the next word LSTM, beside TFF's own.

    python -m benchmarks.next_word --sizes=paper
    python -m benchmarks.next_word --sizes=quick --text_file=path/to/texts.jsonl.gz

TFF's are `build_fed_recon` and `build_fed_recon_eval` with Keras' own LSTM and loss. Both take the
same steps on the same sentences, in turn. Prints one line of JSON: median seconds, ratios, peak
memory of each in a process of its own, and how near our arithmetic comes to a plain matrix
product's rate, measured in the same run; padding counts as no arithmetic. Without --text_file,
sentences are random tokens that fill the whole length, so that there is no padding to save.
"""

from __future__ import annotations

import json
import subprocess
import sys

from absl import flags

from experiments import launch

FLAGS = flags.FLAGS

flags.DEFINE_enum("sizes", "quick", ["paper", "quick"], "Of the model, vocabulary and batches.")
flags.DEFINE_string("text_file", None, "A table of texts. [default: generated sentences]")
flags.DEFINE_integer("rounds", 3, "Rounds timed, of TFF's and ours each.", lower_bound=1)
flags.DEFINE_integer("clients", 20, "Clients of a round, and of an evaluation.", lower_bound=1)
flags.DEFINE_integer("sentences", 96, "Sentences of a client, at most.", lower_bound=2)
flags.DEFINE_enum("only", "both", ["both", "ours", "tff"], "Whose to run.")

SIZES = {
    "paper": {
        "vocab_size": 10_000,
        "embedding_dim": 96,
        "lstm_units": 670,
        "projection_dim": 96,
        "client_batch_size": 16,
    },
    "quick": {
        "vocab_size": 1_000,
        "embedding_dim": 64,
        "lstm_units": 128,
        "projection_dim": 64,
        "client_batch_size": 16,
    },
}
EPOCHS = {"reconstruction_epochs": 1, "local_epochs": 1}


def main() -> None:
    """Times both and prints the JSON line."""
    import statistics

    from benchmarks import next_word_rivals as rivals
    from fedpersonal import runtime
    from fedpersonal.tasks.next_word.task import TASK

    options = TASK.settle(TASK.options(algorithm="fed_recon", **SIZES[FLAGS.sizes], **EPOCHS))
    dataset, vocabulary, name = rivals.load_sentences(
        options, text_file=FLAGS.text_file, clients=FLAGS.clients, sentences=FLAGS.sentences
    )
    sides: dict[str, rivals.Ours | rivals.Tff] = {}
    if FLAGS.only != "tff":
        sides["ours"] = rivals.Ours(options, dataset, vocabulary)
    if FLAGS.only != "ours":
        sides["tff"] = rivals.Tff(options, dataset, vocabulary)
    seconds: dict[str, dict[str, list[float]]]
    seconds = {side: {"training": [], "evaluation": []} for side in sides}
    matrix_rates = []
    for round_number in range(FLAGS.rounds + 1):
        for side, rival in sides.items():
            for part in ("training", "evaluation"):
                elapsed = rivals.timed(getattr(rival, part))
                if round_number:  # The first one compiles.
                    seconds[side][part].append(elapsed)
        matrix_rates.append(rivals.matrix_product_rate())
    medians = {s: {p: statistics.median(v) for p, v in t.items()} for s, t in seconds.items()}
    report = {
        "sizes": FLAGS.sizes,
        "data": name,
        "clients": FLAGS.clients,
        "sentences": int(dataset.num_examples),
        "share_of_padding": round(1 - float((dataset.labels != 0).mean()), 3),
        "seconds": {s: {p: round(v, 3) for p, v in t.items()} for s, t in medians.items()},
        "peak_mb": {side: round(runtime.peak_rss_mb()) for side in sides},
    }
    if FLAGS.only == "both":
        rate = max(matrix_rates)
        report["peak_mb"] = {side: _peak_mb(side) for side in sides}
        report["ratio"] = {
            part: round(medians["tff"][part] / medians["ours"][part], 2)
            for part in ("training", "evaluation")
        }
        report["matrix_product_gflops"] = round(rate / 1e9)
        for side, times in medians.items():
            report[f"{side}_share_of_matrix_rate"] = {
                part: round(work / times[part] / rate, 2)
                for part, work in rivals.arithmetic(options, dataset, vocabulary).items()
            }
    print(json.dumps(report))


def _peak_mb(side: str) -> int:
    """Runs one side alone, in a process of its own, and returns its peak memory."""
    arguments = [f"--{name}={FLAGS[name].value}" for name in ("sizes", "clients", "sentences")]
    if FLAGS.text_file:
        arguments.append(f"--text_file={FLAGS.text_file}")
    command = [sys.executable, "-m", "benchmarks.next_word", f"--only={side}", "--rounds=1"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])["peak_mb"][side]


if __name__ == "__main__":
    launch.run(main)
