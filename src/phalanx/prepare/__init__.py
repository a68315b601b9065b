"""A Job becomes a Plan and an open run: child processes answer about machine and recipe. No torch."""
