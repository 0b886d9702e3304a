"""Predicts next words of Stack Overflow, or of any table of texts by user: FedRecon and others.

fedpersonal stackoverflow --text_file=path/to/texts.jsonl.gz --method=fed_recon
"""

from experiments import launch
from fedpersonal.tasks.next_word.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
