"""The parts of `experiments.sweep`: settings, their parallel runs, the choice, the page."""
