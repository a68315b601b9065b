"""The process that imports torch once and forks ranks, and what a forked rank needs."""
