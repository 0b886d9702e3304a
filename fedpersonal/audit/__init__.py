"""Experiments that check the boundary: what one client sends, and on which data it depends."""
