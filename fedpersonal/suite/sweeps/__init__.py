"""Sweeps: settings, their runs, the choice, the page."""
