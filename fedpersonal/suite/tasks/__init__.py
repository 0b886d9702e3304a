"""Tasks: a data set, its protocol of splits and evaluations, and the models that fit it."""
