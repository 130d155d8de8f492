"""Names and digests: pure functions, the caller gives the time."""

import hashlib
import re
from datetime import UTC, datetime

import msgspec


def digest(value: object, *, length: int = 12) -> str:
    """A short content address: sha256 of the value's canonical JSON."""
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(raw).hexdigest()[:length]


def slug(text: str) -> str:
    """A name for files, units and URLs: at most 100 lower case letters, digits, dots and dashes; `model` when nothing is left."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:100].rstrip("-.") or "model"


def run_id(name: str, now: float, salt: str) -> str:
    """`NAME-YYYYMMDD-HHMMSS-xxxx`: sorts by time, unique by salt."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%d-%H%M%S")
    return f"{slug(name)[:40]}-{stamp}-{digest(salt, length=4)}"
