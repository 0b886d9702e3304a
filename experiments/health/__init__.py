"""What `experiments.doctor` checks."""
