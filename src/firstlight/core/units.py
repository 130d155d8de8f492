"""Bytes and seconds: plain numbers in JSON, GiB and minutes for people."""

import re

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
_BINARY = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": TIB, "tib": TIB}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def format_bytes(n: float | None, *, digits: int = 2) -> str:
    """Bytes as the largest binary unit that keeps the number at 1 or more; `unknown` for None."""
    if n is None:
        return "unknown"
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n) >= size:
            return f"{n / size:.{digits}f} {unit}"
    return f"{n:.0f} B"


def gib(n: float | None, *, digits: int = 2) -> str:
    """Bytes as GiB whatever their size: columns of a table stay comparable."""
    return "unknown" if n is None else f"{n / GIB:.{digits}f} GiB"


def parse_bytes(text: str) -> int:
    """Bytes from `17179869184`, `16GiB`, `16 gb`, `1.5T`. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = match[2].lower() if match else ""
    factor = _BINARY.get(unit) or _DECIMAL.get(unit)
    if match is None or factor is None:
        raise ValueError(f"not a size: {text!r}")
    return round(float(match[1]) * factor)


def format_seconds(s: float | None) -> str:
    """Seconds as people say them: `0.4 s`, `52 s`, `3 min 20 s`, `2 h 5 min`."""
    if s is None:
        return "unknown"
    if s < 10:
        return f"{s:.1f} s"
    if s < 120:
        return f"{s:.0f} s"
    minutes, seconds = divmod(round(s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
