"""Object detection with Ultralytics' models."""
