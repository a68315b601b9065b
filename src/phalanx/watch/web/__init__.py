"""Runs in a browser: pages that read run directories and change nothing."""
