"""The frozen objects that the planner reads and writes: Trace, Plan, Forecast."""
