"""How far loading is while the log says nothing: what the processes have read, mapped and brought into memory since it began. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from firstlight.watch.stall import Sample

SOURCES = (
    ("read_bytes", "read by the processes"),
    ("mapped_bytes", "mapped into the processes"),
    ("cached_bytes", "in the page cache"),
)


class Loaded(Struct, frozen=True, kw_only=True):
    """Bytes of the checkpoint that are there, and which signal says so."""

    bytes: int
    source: str


def loaded(began: Sample, now: Sample, total: int) -> Loaded | None:
    """What has been loaded of `total` bytes between two samples; None where nothing can be read or nothing grew.

    Each signal is a lower bound (a loader reads, or maps, or a helper prefetches), so that the largest counts. GPU memory is taken only
    where none of them can be read: engines reserve it for the weights before they fill it.
    """
    grown = [(_growth(began, now, name), source) for name, source in SOURCES]
    seen = [(count, source) for count, source in grown if count is not None]
    if not seen and (held := _growth(began, now, "gpu_bytes")) is not None:
        seen = [(held, "GPU memory, reserved or filled")]
    count, source = max(seen, default=(0, ""))
    return Loaded(bytes=min(count, total), source=source) if count > 0 else None


def _growth(began: Sample, now: Sample, name: str) -> int | None:
    before, after = getattr(began, name), getattr(now, name)
    return None if before is None or after is None else int(after - before)


class Reading:
    """Follows loading over samples. total: the checkpoint's bytes, None where they are unknown (then nothing is said)."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._began: Sample | None = None
        self.last: Loaded | None = None

    def see(self, samples: Sequence[Sample], *, loading: bool) -> Loaded | None:
        """Takes the latest samples; counts from the last one before loading began. A phase that is over forgets it."""
        if not loading or not self._total or not samples:
            self._began = self.last = None
            return None
        if self._began is None:
            self._began = samples[-2] if len(samples) > 1 else samples[-1]
        self.last = loaded(self._began, samples[-1], self._total)
        return self.last
