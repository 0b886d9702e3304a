"""Made-up data with the traits of real ones, for tests, benchmarks and first steps."""
