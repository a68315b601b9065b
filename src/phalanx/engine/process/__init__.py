"""This process as a rank: group, device memory, heartbeat, failure, telemetry."""
