"""Predicted memory of a rank, and whether a job fits."""
