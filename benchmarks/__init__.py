"""Benchmarks, to be run by hand: timing has no place in tests."""
