"""Runs, plans and findings as text: the only place that prints."""
