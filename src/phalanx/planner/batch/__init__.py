"""Batch size, learning rate and intervals."""
