"""What `experiments.sweep` does: settings, their runs at once, the choice, the page."""
