"""A Keras model as a function of its variables: partition, lookups, frozen values, metrics."""
