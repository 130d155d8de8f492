"""firstlight: from a checkpoint and a GPU machine to a verified, benchmarked, persistent endpoint."""

__version__ = "0.1.0"
