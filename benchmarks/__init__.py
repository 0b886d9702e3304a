"""Benchmarks, run by hand, since tests must not depend on timing."""
