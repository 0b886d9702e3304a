"""Subreddits of comments, films liked, or labels of any texts by user: FURL and its rivals.

fedpersonal reddit --text_file=path/to/comments.jsonl.gz --method=furl
fedpersonal reddit --dataset=movielens_100k --text_encoder=hashed_words
"""

from experiments import launch
from fedpersonal.tasks.documents.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
