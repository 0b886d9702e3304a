"""Keras models of the suite's tasks; independent of data sets and federated learning."""
