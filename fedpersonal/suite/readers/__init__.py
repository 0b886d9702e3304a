"""Readers of data sets and of a user's tables, and generated data."""
