"""Synthetic data that resemble real data, for tests, benchmarks and first steps.

The same options, including the seed, give the same data.
"""
