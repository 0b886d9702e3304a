"""Optimizers of clients and of the server, by name, and rates that change with the round."""
