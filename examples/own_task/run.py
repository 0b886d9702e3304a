"""A method on a task of one's own.

python -m examples.own_task.run --method=fed_rep
"""

from examples.own_task.task import TASK
from experiments import launch

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
