"""Custom texts: a command trains on a table of texts with labels, and its run is loaded.

python examples/own_texts.py [comments.csv]

The table has the columns user, text and context, which is the label; without one, comments are
generated. Each user keeps an embedding (FURL), which resolves texts that fit several labels.
"""

import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd

import fedpersonal as fp

# isort: split
from fedpersonal.suite.readers.generated.documents import generate_subreddits


def make_up_table() -> str:
    """Writes comments of 80 users, most of which could be about several topics."""
    data = generate_subreddits(num_users=80, num_labels=4, seed=0)
    users = np.repeat(data.client_ids, np.diff(data.offsets))
    columns = {"user": users, "text": data.texts, "context": data.label_names[data.labels]}
    path = tempfile.mkdtemp() + "/comments.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


path = sys.argv[1] if sys.argv[1:] else make_up_table()
folder = tempfile.mkdtemp() + "/run"
flags = [f"--text_file={path}", "--size=quick", f"--output_dir={folder}"]
flags += ["--total_rounds=100", "--rounds_per_eval=25"]
subprocess.run([sys.executable, "-m", "fedpersonal", "labels", *flags], check=True)

run = fp.load_run(folder)
table = run.per_client.sort_values("accuracy_after")
print(f"accuracy with initial embeddings: {table['accuracy_before'].mean():.3f}")
print(f"accuracy with those that users keep: {table['accuracy_after'].mean():.3f}")
print("served worst:", *table["client"][:3])
with run.trained as trained:
    print("kept by each user:", *(v.name for v in trained.model.local_variables))
