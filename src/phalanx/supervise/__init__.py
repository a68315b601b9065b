"""Owns a run: starts its ranks, follows and restarts them, and judges how they ended."""
