"""Predicts ratings of MovieLens, or of any table of ratings: FedRecon and other methods.

fedpersonal movielens --total_rounds=500 --data_dir=path/to/ml-1m
"""

from experiments import launch
from fedpersonal.tasks.ratings.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
