"""Samples on their way to the device: order, loading, caches, copies."""
