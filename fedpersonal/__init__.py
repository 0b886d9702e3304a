"""Partially local federated learning on TensorFlow Federated."""

__version__ = "0.2.0"
