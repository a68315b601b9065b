"""Slurm jobs: requested, checked, written as a script, submitted and followed."""
