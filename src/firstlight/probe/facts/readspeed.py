"""How fast a place really reads: up to four streams of at most 256 MiB, past the page cache, bounded in time."""

import re

from firstlight.probe.fact import Fact, shell

SECONDS = 3
_SCRIPT = """
one() { timeout -s INT "$3" dd if="$1" of=/dev/null bs=4M count=64 skip="$2" iflag=direct 2>&1; }
find -L "$1" -maxdepth 2 -type f -size +131072 2>/dev/null | head -n 4 | {
  n=0; while IFS= read -r f; do n=$((n + 1)); last=$f; one "$f" 0 "$2" & done
  [ "$n" = 1 ] && for s in 64 128 192; do one "$last" "$s" "$2" & done
  wait; }
"""


def parse_read_speed(text: str) -> float | None:
    """`dd`'s closing lines: all bytes over the longest time, bytes per second; None when less than 32 MiB were read."""
    rows = [(int(m[1]), float(m[2])) for m in re.finditer(r"^(\d+) bytes .*copied, ([\d.e+-]+) s", text, re.M)]
    amount, seconds = sum(r[0] for r in rows), max((r[1] for r in rows if r[0]), default=0.0)
    return round(amount / seconds) if amount >= 32 << 20 and seconds > 0 else None


def read_speed(path: str) -> Fact[float | None]:
    """Of files over 64 MiB in `path` (a folder two levels deep, or a file). Direct I/O: a file system without it gives None."""
    return shell(f"read-speed:{path}", _SCRIPT, parse_read_speed, arguments=[path, str(SECONDS)], timeout=SECONDS + 10)
