"""Models utterances of characters, or of users of Reddit: FedPerC and other methods.

fedpersonal tv_shows --flagfile=experiments/presets/tv_shows_quick.flags
"""

from experiments import launch
from fedpersonal.tasks.utterances.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
