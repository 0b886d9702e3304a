"""Evaluation of clients before and after personalisation."""

# Of each metric over clients.
PERCENTILES = (5, 25, 50, 75, 95)
