"""Data by client. The modules of this folder know clients and their examples only.

`tables`, `ratings` and `texts` read data, `generated` makes some up, and `sources` finds them. An
option out of range is a `UserError` that names it, in every function.
"""
