"""Keras models of the suite's tasks; they know neither data sets nor federated learning."""
