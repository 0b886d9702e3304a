"""Classifies handwritten digits of heterogeneous clients: FedRep and other methods.

fedpersonal digits --method=ditto
"""

from experiments import launch
from fedpersonal.tasks.digits.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
