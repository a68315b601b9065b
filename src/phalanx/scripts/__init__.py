"""Training scripts that were not written for Phalanx: environment, output, ranks."""
