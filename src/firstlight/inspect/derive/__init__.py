"""Which tensors a published checkpoint of a known architecture has, from config.json alone."""
