"""Another machine over ssh: known places, one connection, push, environment, runs, checks."""
