"""Examples of many clients: reading, splitting and batching them with NumPy and pandas alone."""
