"""Pages to look at runs: each one file, which needs no network."""
