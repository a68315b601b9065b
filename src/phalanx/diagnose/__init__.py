"""What recorded runs say about a fault. Pure: files in, Findings out, no torch."""
