"""Data by client. The modules of this folder depend on clients and their examples only.

`tables`, `ratings` and `documents` read data, `generated` makes synthetic data, and `sources`
locates data. Every function raises a `UserError` that names an option out of range.
"""
