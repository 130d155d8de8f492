"""Composition and surfaces: the only room that knows the order of the others."""
