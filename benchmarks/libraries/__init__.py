"""FedRecon's round in other libraries, each a program in a separate environment.

They import NumPy and their library, but neither TensorFlow nor fedpersonal.
"""
