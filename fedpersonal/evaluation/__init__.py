"""Evaluation of clients before and after personalisation."""
