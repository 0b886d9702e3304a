"""The papers' tables and figures: their rows, published numbers, pictures."""
