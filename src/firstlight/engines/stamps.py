"""The times that engines' lines carry. Pure."""

import calendar
import re
from functools import lru_cache

CALENDAR = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?")
_SINCE_START = re.compile(r"(\d+)\.(\d\d)\.(\d\d\d)\.(\d\d\d)")


@lru_cache(maxsize=64)
def seconds_of(stamp: str) -> float | None:
    """A line's own time in seconds: Unix time for a calendar stamp (2000 where it has no year), since the start for llama.cpp's."""
    if m := _SINCE_START.fullmatch(stamp):
        return int(m[1]) * 60 + int(m[2]) + int(m[3]) / 1e3 + int(m[4]) / 1e6
    if (m := CALENDAR.match(stamp)) is None or not 1 <= int(m[2]) <= 12 or not 1 <= int(m[3]) <= 31:
        return None
    whole = calendar.timegm((int(m[1] or 2000), int(m[2]), int(m[3]), int(m[4]), int(m[5]), int(m[6])))
    return whole + float(f"0.{m[7] or 0}")
