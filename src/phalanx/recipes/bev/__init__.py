"""A driving planner from bird's-eye view."""
