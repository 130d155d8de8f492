"""Which ranges of a part file are on the disk: an append-only text file that survives kill -9 at any byte.

First line: what the bytes belong to. Then `START END` a line, written after the bytes were. A torn last line is ignored.
"""

import json
import os
from pathlib import Path

Range = tuple[int, int]


class Journal:
    """Opened for one part file; ranges of another identity are thrown away together with the part, so that two revisions never mix."""

    def __init__(self, part: Path, identity: str, size: int | None) -> None:
        self.path, self.part = part.with_name(part.name + ".journal"), part
        self._head: dict[str, object] = {"identity": identity, "size": size}
        self.ranges = self._load()
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def record(self, start: int, end: int) -> None:
        """These bytes are in the part file. Raises OSError."""
        if end > start:
            os.write(self._fd, f"{start} {end}\n".encode())

    def restart(self) -> None:
        """Nothing that was recorded counts any more."""
        os.ftruncate(self._fd, 0)
        os.write(self._fd, json.dumps(self._head).encode() + b"\n")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def _load(self) -> list[Range]:
        """Reads, merges, and rewrites the journal in its shortest form."""
        ranges = read_ranges(self.path, self._head)
        on_disk = self.part.stat().st_size if self.part.exists() else 0
        ranges = [(a, min(b, on_disk)) for a, b in ranges if a < on_disk]
        if not ranges:
            self.part.unlink(missing_ok=True)
        lines = [json.dumps(self._head), *(f"{a} {b}" for a, b in ranges)]
        fresh = self.path.with_name(self.path.name + ".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)
        return ranges


def read_ranges(path: Path, head: dict[str, object] | None = None) -> list[Range]:
    """The merged ranges of a journal; none when it is missing, torn at its head, or belongs to other bytes than `head`."""
    try:
        text = path.read_text(errors="replace")
        first, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
        found = json.loads(first)
    except (OSError, ValueError):
        return []
    if head is not None and found != head:
        return []
    return merge([(int(a), int(b)) for a, _, b in (line.partition(" ") for line in lines) if a.isdecimal() and b.isdecimal()])


def merge(ranges: list[Range]) -> list[Range]:
    """Sorted ranges without overlap; empty ones are dropped."""
    merged: list[Range] = []
    for start, end in sorted(r for r in ranges if r[1] > r[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
