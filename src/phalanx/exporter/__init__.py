"""Trained models as files that other tools run: made in a child process, compared with PyTorch."""
