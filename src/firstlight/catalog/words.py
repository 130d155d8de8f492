"""Which words the failures of each code are told with: weights learned from excerpts whose cause is known, for messages no rule knows.

Data: words.txt, made by tools/learn_words.py: the codes in one line, then a line per word with the number of a code and its weight, again
and again. A code's score is the sum of its weights over a message's words, each word counted by how rare it is.
"""

import math
from collections.abc import Iterable
from functools import cache
from importlib import resources

from msgspec import Struct

SCALE = 100  # a weight of 1.0 is written as 100


class Words(Struct, frozen=True, kw_only=True):
    """rarity: of each word, natural logarithm; weights: of each word, code number -> weight."""

    codes: tuple[str, ...]
    rarity: dict[str, float]
    weights: dict[str, dict[int, float]]

    def shares(self, words: Iterable[str]) -> list[tuple[str, float]]:
        """Every code with its share (all are 1 together), the likeliest first. Empty where no word is known."""
        values = strengths(self.rarity, words)
        if not values:
            return []
        sums = [0.0] * len(self.codes)
        for word, value in values.items():
            for number, weight in self.weights[word].items():
                sums[number] += weight * value
        return sorted(zip(self.codes, softmax(sums), strict=True), key=lambda pair: -pair[1])

    def known(self, words: Iterable[str]) -> set[str]:
        return {word for word in words if word in self.rarity}

    def telling(self, words: Iterable[str], code: str) -> set[str]:
        """The words that speak for a code."""
        number = self.codes.index(code)
        return {word for word in self.known(words) if self.weights[word].get(number, 0.0) > 0}


def strengths(rarity: dict[str, float], words: Iterable[str]) -> dict[str, float]:
    """The known words by how rare each is, together of length 1."""
    known = {word: rarity[word] for word in sorted(words) if word in rarity}
    length = math.sqrt(sum(value * value for value in known.values()))
    return {word: value / length for word, value in known.items()} if length else {}


def softmax(sums: list[float]) -> list[float]:
    top = max(sums)
    powers = [math.exp(s - top) for s in sums]
    whole = sum(powers)
    return [p / whole for p in powers]


@cache
def load_words() -> Words:
    """The learned weights."""
    file = resources.files("firstlight.catalog") / "words.txt"
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    rarity: dict[str, float] = {}
    weights: dict[str, dict[int, float]] = {}
    for line in lines[1:]:
        word, rare, *pairs = line.split(" ")
        rarity[word] = int(rare) / SCALE
        weights[word] = {int(n): int(w) / SCALE for n, w in zip(pairs[::2], pairs[1::2], strict=True)}
    return Words(codes=tuple(lines[0].split(" ")), rarity=rarity, weights=weights)
