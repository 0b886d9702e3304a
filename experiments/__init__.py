"""One absl binary for each subcommand of `fedpersonal`, for Bazel and `python -m`."""
