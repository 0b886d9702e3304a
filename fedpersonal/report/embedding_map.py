"""The largest embedding table of a run's global variables, as a map of two axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpersonal.errors import UserError
from fedpersonal.files import read_arrays
from fedpersonal.report.numbers import rounded
from fedpersonal.report.run_data import RunData

_GLOBAL, _TABLE = "global ", "/embeddings"
_FEWEST, _MOST = 3, 3_000


def embedding_map(run: RunData) -> dict[str, Any] | None:
    """Returns the rows of a table along the two axes in which they differ most (PCA).

    Returns:
        `name`; `x` and `y`, numbers; and `share`, of their variance in both axes. None where the
        run has no table of at least two dimensions. Of a long table, every n-th row is shown.
    """
    path = run.path / "model.npz"
    try:
        arrays = read_arrays(path) if path.exists() else {}
    except UserError:
        return None  # A page of a run does without its model; `load_run` complains.
    tables = {
        name[len(_GLOBAL) :]: table
        for name, table in arrays.items()
        if name.startswith(_GLOBAL) and name.endswith(_TABLE)
    }
    fitting = {
        n: t
        for n, t in tables.items()
        if t.ndim == 2 and len(t) >= _FEWEST and t.shape[1] >= 2 and np.isfinite(t).all()
    }
    if not fitting:
        return None
    name = max(fitting, key=lambda n: fitting[n].size)
    table = fitting[name].astype(np.float64)
    table = table[:: -(-len(table) // _MOST)]
    table -= table.mean(0)
    # Not by the matrix of covariances: a row may have a hundred thousand numbers.
    _, deviations, axes = np.linalg.svd(table, full_matrices=False)
    if not deviations[0] > 0:
        return None
    axes = axes[:2].T
    # An axis has two directions; the larger entry points up.
    axes *= np.sign(axes[np.abs(axes).argmax(0), [0, 1]])
    places, variances = table @ axes, np.square(deviations)
    share = float(variances[:2].sum() / variances.sum())
    rows = len(fitting[name])
    return {
        "name": name,
        "rows": rows,
        "x": rounded(places[:, 0], 3),
        "y": rounded(places[:, 1], 3),
        "share": share,
    }
