"""Another machine over ssh: known places, one connection, push, environment, runs, checks.

`far_*.py` is what runs over there; it is sent on stdin, and nothing of it is installed.
"""
