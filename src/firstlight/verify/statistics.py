"""Statistics of texts, without any model: floods, loops, broken characters. Pure functions."""

import math
from collections import Counter
from itertools import groupby

RULERS = "-=_*. #"


def character_entropy(text: str) -> float:
    """Shannon entropy of the characters in bits; English prose is near 4.2, a flood of one character 0."""
    counts, total = Counter(text), len(text)
    return -sum(c / total * math.log2(c / total) for c in counts.values()) if total else 0.0


def longest_run(text: str) -> tuple[int, str]:
    """The longest run of one and the same character: how long, and which."""
    return max(((sum(1 for _ in run), character) for character, run in groupby(text)), default=(0, ""))


def cycle_share(items: list[str], *, longest: int = 4) -> float:
    """The share of items that repeat the one `p` places before, for the best period p of 1..longest."""
    if len(items) <= longest:
        return 0.0
    return max(sum(a == b for a, b in zip(items, items[p:], strict=False)) / (len(items) - p) for p in range(1, longest + 1))


def broken_characters(text: str) -> int:
    """U+FFFD and control characters other than tab, newline and return."""
    return sum(1 for c in text if c == "\ufffd" or (ord(c) < 32 and c not in "\t\n\r"))


def is_broken(text: str) -> bool:
    """More broken characters than a cut at the end explains."""
    return broken_characters(text) > max(2, len(text) // 20)


def flood(text: str) -> str | None:
    """Why a text is no language at all, or None. Judges only what no healthy model writes when asked a plain question."""
    body = text.strip()
    if len(body) < 12:
        return None
    run, character = longest_run(body)
    if run >= 24 and character not in RULERS:
        return f"{character!r} {run} times in a row"
    top, count = Counter(body.replace(" ", "")).most_common(1)[0]
    if count / len(body.replace(" ", "")) > 0.6:
        return f"{count} of {len(body)} characters are {top!r}"
    if character_entropy(body) < 1.5:
        return f"character entropy {character_entropy(body):.1f} bits (prose: about 4)"
    if is_broken(body):
        return f"{broken_characters(body)} of {len(body)} characters are not text"
    words = body.split()
    if len(words) >= 16 and cycle_share(words) > 0.9:
        return f"{cycle_share(words):.0%} of the words repeat in a cycle of at most 4"
    return None
