"""A number and where it comes from. A figure without a rung is a bug; unknown is None, never 0."""

from enum import StrEnum

from msgspec import Struct


class Rung(StrEnum):
    """The ladder of evidence; a later rung replaces an earlier one."""

    COMPUTED = "computed"
    ASKED = "asked"
    REHEARSED = "rehearsed"
    MEASURED = "measured"


class Figure(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """An interval `low <= mid <= high` (bytes, seconds or a rate, as the field's name says) with its rung and reason."""

    low: float | int | None = None
    mid: float | int | None = None
    high: float | int | None = None
    rung: Rung = Rung.COMPUTED
    because: str | None = None

    @classmethod
    def exact(cls, value: float | int | None, rung: Rung, because: str | None = None) -> "Figure":
        return cls(low=value, mid=value, high=value, rung=rung, because=because)

    @property
    def known(self) -> bool:
        return self.mid is not None
