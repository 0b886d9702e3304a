"""The MovieLens command with one more method.

python -m examples.own_binary --method=slow_body --ratings_file=path/to/ratings.csv
"""

import examples.own_method  # noqa: F401  Registers the method.
from fedpersonal.suite.commands import launch
from fedpersonal.suite.tasks.ratings.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
