"""One rank from start to end: assembly, loop, saving, measuring."""
