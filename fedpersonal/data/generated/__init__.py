"""Made-up data with the traits of real ones, for tests, benchmarks and first steps.

The same options, seed included, give the same data.
"""
