"""FedRecon and its rivals on MovieLens, or on any table of ratings.

fedpersonal movielens --total_rounds=500 --data_dir=path/to/ml-1m
"""

from experiments import launch
from fedpersonal.tasks.ratings.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
