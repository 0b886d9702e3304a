"""Predicts subreddits of comments, films that users like, or labels of any texts: FURL and others.

fedpersonal reddit --text_file=path/to/comments.jsonl.gz --method=furl
fedpersonal reddit --dataset=movielens_100k --text_encoder=hashed_words
"""

from experiments import launch
from fedpersonal.tasks.documents.task import TASK

main = launch.task_main(TASK)

if __name__ == "__main__":
    launch.run(main)
