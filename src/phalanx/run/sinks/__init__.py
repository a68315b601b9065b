"""Curves, pictures and results for other tools, written by a process of their own."""
