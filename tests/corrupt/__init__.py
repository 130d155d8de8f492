"""Damaged models, servers that lie, and real engines to put them on: what verify is tested against."""
