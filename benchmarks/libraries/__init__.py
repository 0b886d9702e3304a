"""FedRecon's round by other libraries, each a program in an environment of its own.

They import NumPy and their library, and nothing of TensorFlow or fedpersonal.
"""
