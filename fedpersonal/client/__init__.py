"""Pure TensorFlow functions of a client's round, each on a stack of clients."""
