"""Custom ratings: a command trains on a CSV file, and its run is loaded to predict for a new user.

python examples/own_ratings.py [ratings.csv]

The table has the columns user, item and rating; without one, a small one is generated. Users'
vectors never leave their clients: a new user's vector is rebuilt from a few ratings.
"""

import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd

import fedpersonal as fp

# isort: split
from fedpersonal.suite.tasks.ratings.task import TASK


def make_up_table() -> str:
    """Writes ratings of 60 users: half like even films, the other half odd ones."""
    random = np.random.default_rng(0)
    user, item = np.repeat(np.arange(60), 20), random.integers(0, 40, 1200)
    rating = np.where((user + item) % 2, 2, 4) + random.integers(0, 2, 1200)
    path = tempfile.mkdtemp() + "/ratings.csv"
    table = pd.DataFrame({"user": user, "item": item, "rating": rating})
    table.drop_duplicates(["user", "item"]).to_csv(path, index=False)
    return path


path = sys.argv[1] if sys.argv[1:] else make_up_table()
folder = tempfile.mkdtemp() + "/run"
flags = [f"--ratings_file={path}", "--size=quick", f"--output_dir={folder}"]
subprocess.run([sys.executable, "-m", "fedpersonal", "ratings", *flags], check=True)

run = fp.load_run(folder)
table = run.per_client
print(f"rmse before users rebuild their vectors: {table['rmse_before'].mean():.3f}")
print(f"rmse after that: {table['rmse_after'].mean():.3f}")

options = {name: value for name, value in run.config["options"].items() if name != "task"}
films = TASK.read(TASK.options(**options)).item_ids
rated = pd.DataFrame({"user": "newcomer", "item": [0, 1, 2, 3], "rating": [5.0, 2.0, 5.0, 2.0]})
newcomer = fp.clients_from_table(
    rated, client_column="user", features={"item": "item"}, label_column="rating"
)
with run.trained as trained:
    scores = trained.predict({"item": np.arange(len(films))}, support=newcomer)
scores[rated["item"]] = -np.inf  # Excludes items that the new user has rated.
top = films[np.argsort(-scores)[:5]]
print("a newcomer who likes", films[0], "and", films[2], "may like", *top)
