"""Collects what vLLM's sources say when they fail, so that a pasted message without frames still names its place.

    python tools/generate_texts.py PACKAGE/vllm [PACKAGE/vllm ...]      unpacked releases, the oldest first

Writes src/firstlight/catalog/engines/vllm/texts.txt. Kept is the longest fixed part of each raise and assert, cut at 52 characters,
where it is long enough to be nobody else's and all places that print it are known by one rule of rules/components.toml.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import diagnose_texts

from firstlight.catalog.rules import builtin_rules

FILE = Path(__file__).parents[1] / "src" / "firstlight" / "catalog" / "engines" / "vllm" / "texts.txt"
KEPT = 52
HOLE = "\x00"
PLACED = sorted((r for r in builtin_rules() if r.places), key=lambda r: -r.priority)


def code_of(place: str) -> str | None:
    return next((r.code for r in PLACED if any(p.search(place) for p in r.places)), None)


def place_of(text: diagnose_texts.Text) -> str:
    """The file, with the function where that says more (what loads weights)."""
    return f"{text.path}:{text.function}" if "load" in text.function else f"{text.path}:"


def own_part(message: str) -> str | None:
    """The longest fixed part of a message, None where it could be anybody's."""
    part = max(re.split(f"[{HOLE}\n]", message), key=len).strip()
    words = part.count(" ") + 1
    return part[:KEPT].strip() if (len(part) >= 24 and words >= 4) or (len(part) >= 32 and words >= 3) else None


def main() -> None:
    diagnose_texts.sample = lambda name: HOLE
    places: dict[str, dict[str, None]] = {}
    for package in sys.argv[1:]:
        for text in diagnose_texts.texts_of(Path(package)):
            if text.kind != "logged" and (part := own_part(text.message)):
                places.setdefault(part, {})[place_of(text)] = None
    by_place: dict[str, list[str]] = {}
    for part, found in places.items():
        codes = {code_of(place) for place in found}
        if len(codes) == 1 and None not in codes:
            by_place.setdefault(list(found)[-1], []).append(part)
    lines = ["# Made by tools/generate_texts.py from vLLM 0.6.6 to 0.33.0: places, and the fixed parts of what only they print."]
    for place in sorted(by_place):
        lines += [place, *(f" {part}" for part in sorted(by_place[place]))]
    FILE.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{sum(map(len, by_place.values()))} texts of {len(by_place)} places, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
