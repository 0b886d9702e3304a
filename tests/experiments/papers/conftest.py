"""What tests of tables share."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="session")
def few_ratings(tmp_path_factory):
    """The path of a table of 20 users with 20 ratings each."""
    path, random = tmp_path_factory.mktemp("ratings") / "ratings.csv", np.random.default_rng(0)
    lines = [
        f"u{user},i{item},{random.integers(1, 6)},{item}\n"
        for user in range(20)
        for item in random.permutation(30)[:20]
    ]
    path.write_text("user,item,rating,time\n" + "".join(lines))
    return str(path)
