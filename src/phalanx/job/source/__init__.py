"""What a job is read from: YAML with line numbers, the origin of every value, value types."""
