"""One absl binary a task; flags and wiring only."""
