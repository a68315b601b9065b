"""The choices of a plan, one file each."""
