"""Next word prediction on Stack Overflow, or on any table of texts by user: FedRecon and rivals.

fedpersonal stackoverflow --text_file=path/to/texts.jsonl.gz --method=fed_recon
"""

from experiments import launch
from fedpersonal.tasks.next_word.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
