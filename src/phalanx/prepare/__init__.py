"""A Job becomes a Plan and an open run: child processes answer for torch and the recipe."""
