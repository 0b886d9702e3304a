"""Ranks a user's next item, on MovieLens or any table of users and items: PFedRec and others.

fedpersonal interactions --method=pfedrec --data_dir=path/to/ml-1m
"""

from experiments import launch
from fedpersonal.tasks.interactions.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
