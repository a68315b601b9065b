"""Weights and optimizer state to and from disk, on any number of ranks."""
