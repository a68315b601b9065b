"""Predicted time of a step: compute, communication, data."""
