"""Keras models as functions of their variables: partition, lookups, frozen values, metrics."""
