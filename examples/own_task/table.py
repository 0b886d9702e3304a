"""The methods side by side on a task of one's own.

python -m examples.own_task.table [--total_rounds=100] [any other flag of run.py]
"""

import subprocess
import sys

import fedpersonal as fp

# isort: split
import pandas as pd

from examples.own_task.task import TASK

METHODS = (
    *("local_only", "fed_avg", "fed_prox", "fed_avg_finetuning"),
    *("fed_per", "fed_rep", "fed_babu", "fed_sim"),
)


def main() -> None:
    """Runs each method in a folder of its own, and prints a table of accuracies."""
    rows = []
    for method in METHODS:
        folder = f"results/{TASK.name}/{method}"
        flags = [*sys.argv[1:], f"--method={method}", f"--output_dir={folder}"]
        subprocess.run([sys.executable, "-m", "examples.own_task.run", *flags], check=True)
        summary = fp.load_run(folder).summary
        seen, unseen = (summary[part]["accuracy"] for part in ("test", "unseen"))
        rows.append({"method": method, "seen clients": seen, "unseen clients": unseen})
    print(pd.DataFrame(rows).to_markdown(index=False, floatfmt=".3f"))


if __name__ == "__main__":
    main()
