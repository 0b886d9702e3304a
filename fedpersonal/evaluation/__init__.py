"""Evaluation of clients before and after personalisation."""

# Percentiles over clients that are reported for each metric.
PERCENTILES = (5, 25, 50, 75, 95)
