"""A model's weights on this machine's disk: verified as they arrive, resumable after anything, one bar."""
