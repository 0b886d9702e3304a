"""Pages that show runs; each is a single file that needs no network."""
