"""What runs inside the engine's own environment: the only files that import the engine."""
