"""Intervals: how computed figures are made, added and taken from each other."""

from firstlight.core.figures import Figure, Rung


def known(value: float | int, because: str | None = None) -> Figure:
    """A figure without spread."""
    return Figure.exact(value, Rung.COMPUTED, because)


def unknown(because: str) -> Figure:
    return Figure(because=because)


def interval(mid: float, share: float, because: str | None = None) -> Figure:
    """`mid` give or take `share` of it."""
    return Figure(low=round(mid * (1 - share)), mid=round(mid), high=round(mid * (1 + share)), because=because)
