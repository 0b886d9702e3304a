"""A client's round, as pure TensorFlow functions of a stack of clients."""
