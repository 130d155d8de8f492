"""Learns with which words the failures of each code are told, for messages that no rule knows.

    python tools/learn_words.py            # writes src/firstlight/catalog/words.txt from tools/words.txt and tests/rules
    python tools/learn_words.py --check    # cross-validation: each set of tools/words.txt by what the others (and older rules) teach
    python tools/learn_words.py --gather 5=FOLDER ...   # makes tools/words.txt anew of sets (NNN/log.txt, NNN/truth.json, score-first.md)

tools/words.txt keeps of each excerpt of a public failure the codes that are true for it, what the rules of its time said of it, and its
words, single and in the order of the alphabet; words that only one excerpt has are left out. Taught is multinomial logistic regression, one
weight a word and code, by stochastic gradient descent in an order that does not change.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from firstlight.catalog.rules import builtin_rules
from firstlight.catalog.words import SCALE, softmax, strengths
from firstlight.diagnose.decide import decide
from firstlight.diagnose.likeness import told, words_of
from firstlight.diagnose.log import read

ROOT = Path(__file__).parents[1]
GATHERED = ROOT / "tools" / "words.txt"
WEIGHTS = ROOT / "src" / "firstlight" / "catalog" / "words.txt"
VAGUE = {"cause-not-visible", "workerproc-load-failed-unknown", "engine-check-failed"}  # these say no more than that no rule knows it
ENDINGS = {"process-killed", "process-crashed", "process-vanished", "stopped-while-starting"}  # told by how a process ended, not by words
NAMED = {r.code for r in builtin_rules() if r.role == "cause"} - VAGUE - ENDINGS
ROUNDS, RATE, DECAY, MOST_CODES = 25, 4.0, 1e-5, 2
SEED = 6
LEAST = 0.25  # smaller weights are left out


class Excerpt(NamedTuple):
    """group: the set it came with; at: seconds since 1970, of its first run or of the commit that brought the rule's log; verdict: of that
    first run; confidence: of its answer; codes: true for it; general: true, but saying less."""

    group: str
    at: int
    verdict: str
    confidence: float
    codes: tuple[str, ...]
    general: tuple[str, ...]
    words: frozenset[str]

    @property
    def taught(self) -> tuple[str, ...]:
        return tuple(code for code in self.codes if code in NAMED)[:MOST_CODES]


class Taught(NamedTuple):
    """weights: of a word, one per code."""

    codes: list[str]
    rarity: dict[str, float]
    weights: dict[str, list[float]]

    def shares(self, words: Iterable[str]) -> list[tuple[float, str]]:
        sums = sums_of(self, strengths(self.rarity, words))
        return sorted(zip(softmax(sums), self.codes, strict=True), reverse=True)


def words_in(log: bytes) -> frozenset[str]:
    reader = read(log, None, None)
    return words_of(told(decide(reader, None), reader))


def rule_logs() -> list[Excerpt]:
    """The logs beside the rules, each with the time at which git first saw it."""
    command = ["git", "-C", str(ROOT), "log", "--diff-filter=A", "--format=@%ct", "--name-only", "--", "tests/rules"]
    history = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    times, at = {}, 0
    for line in history.splitlines():
        if line.startswith("@"):
            at = int(line[1:])
        elif line:
            times[ROOT / line] = at
    return [
        Excerpt("rules", times.get(file, 1 << 40), "", 0.0, (file.parent.name,), (), words_in(file.read_bytes()))
        for file in sorted((ROOT / "tests" / "rules").glob("*/hit-*.log"))
        if file.parent.name in NAMED
    ]


def gather(folder: Path, name: str, pattern: str, scores: Path) -> list[Excerpt]:
    """The excerpts of one set with the verdicts of its first run."""
    rows = [[cell.strip() for cell in line.split("|")] for line in scores.read_text("utf-8").splitlines()]
    verdicts = {row[1]: (row[7], float(row[6])) for row in rows if len(row) > 8 and row[1].isdecimal()}
    at, found = int(scores.stat().st_mtime), []
    for case in sorted(folder.glob(pattern)):
        truth = json.loads((case / "truth.json").read_text("utf-8"))
        if case.name in verdicts:
            codes, words = (tuple(truth["accept"]), tuple(truth.get("general", []))), words_in((case / "log.txt").read_bytes())
            found.append(Excerpt(name, at, *verdicts[case.name], *codes, words))
    return found


def written(excerpts: Sequence[Excerpt], known: frozenset[str]) -> str:
    return "".join(
        "\t".join(
            (e.group, str(e.at), e.verdict, str(e.confidence), ",".join(e.codes), ",".join(e.general), " ".join(sorted(e.words & known)))
        )
        + "\n"
        for e in excerpts
    )


def gathered() -> list[Excerpt]:
    rows = [line.split("\t") for line in GATHERED.read_text("utf-8").splitlines() if not line.startswith("#")]
    return [
        Excerpt(group, int(at), verdict, float(sure), _list(codes), _list(general), frozenset(words.split()))
        for group, at, verdict, sure, codes, general, words in rows
    ]


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def sums_of(taught: Taught, values: dict[str, float]) -> list[float]:
    sums = [0.0] * len(taught.codes)
    for word, value in values.items():
        sums = [s + w * value for s, w in zip(sums, taught.weights[word], strict=True)]
    return sums


def teach(excerpts: Sequence[Excerpt]) -> Taught:
    """Weights that give each excerpt's codes the largest share."""
    own = [e for e in excerpts if e.taught and e.words]
    counts = Counter(word for e in own for word in e.words)
    rarity = {word: math.log((len(own) + 1) / n) for word, n in sorted(counts.items()) if n > 1}
    codes = sorted({code for e in own for code in e.taught})
    taught = Taught(codes, rarity, {word: [0.0] * len(codes) for word in rarity})
    lessons = [(strengths(rarity, e.words), {codes.index(c): 1 / len(e.taught) for c in e.taught}) for e in own]
    order = random.Random(SEED)
    for turn in range(ROUNDS):
        order.shuffle(lessons)
        for values, truth in lessons:
            _step(taught, values, truth, RATE / (1 + 3 * turn / ROUNDS))
    return taught._replace(weights={word: [w if abs(w) >= LEAST else 0.0 for w in weights] for word, weights in taught.weights.items()})


def _step(taught: Taught, values: dict[str, float], truth: dict[int, float], rate: float) -> None:
    errors = softmax(sums_of(taught, values))
    for number, share in truth.items():
        errors[number] -= share
    for word, value in values.items():
        step = rate * value
        taught.weights[word] = [w * (1 - DECAY * rate) - step * e for w, e in zip(taught.weights[word], errors, strict=True)]


def rendered(taught: Taught, made_of: str) -> str:
    lines = [f"# Weights of words for codes, made by tools/learn_words.py of {made_of}.", " ".join(taught.codes)]
    for word, weights in sorted(taught.weights.items()):
        kept = [(n, round(w * SCALE)) for n, w in enumerate(weights) if w]
        if kept:
            lines.append(" ".join([word, str(round(taught.rarity[word] * SCALE)), *(f"{n} {w}" for n, w in kept)]))
    return "\n".join(lines) + "\n"


def check(excerpts: Sequence[Excerpt], rules: Sequence[Excerpt]) -> None:
    """Each set by what the other sets and the rules' logs of before its first run teach; said is how right the likeliest code is."""
    answers: list[tuple[float, str, Excerpt]] = []
    groups: dict[str, list[Excerpt]] = defaultdict(list)
    for e in excerpts:
        groups[e.group].append(e)
    for group, own in groups.items():
        taught = teach([e for e in excerpts if e.group != group] + [r for r in rules if r.at < own[0].at])
        answers += [(*taught.shares(e.words)[0], e) for e in own if e.words]
        print(f"set {group}: {len(own)}", file=sys.stderr)
    failures = [a for a in answers if set(a[2].codes) & NAMED]
    missed = [a for a in failures if a[2].verdict.startswith("missed")]
    table("not named in the first run", missed)
    table("of them, sets thirteen and later", [a for a in missed if int(a[2].group) >= 13])
    table("all failures", failures)
    table("healthy and wrappers: none is right", [a for a in answers if not set(a[2].codes) & NAMED])


def table(title: str, answers: list[tuple[float, str, Excerpt]]) -> None:
    answers.sort(key=lambda a: -a[0])
    print(f"\n{title}: {len(answers)}\nshare of  named  right  general  precision (with general)")
    for least in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.0):
        named = [a for a in answers if a[0] >= least]
        right = sum(code in e.codes for _, code, e in named)
        general = sum(code in e.general for _, code, e in named)
        if named:
            print(f"{least:8.2f}  {len(named):5}  {right:5}  {general:7}  {right / len(named):.2f} ({(right + general) / len(named):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--gather", nargs="*", metavar="NUMBER=FOLDER[:PATTERN:SCORES]", default=())
    options = parser.parse_args()
    rules = rule_logs()
    if options.gather:
        new = [e for text in options.gather for e in _gathered_of(text)]
        counts = Counter(word for e in (*new, *rules) for word in e.words)
        GATHERED.write_text(written(new, frozenset(w for w, n in counts.items() if n > 1)), "utf-8")
    elif options.check:
        check(gathered(), rules)
    else:
        excerpts = gathered()
        taught = teach([*excerpts, *rules])
        WEIGHTS.write_text(rendered(taught, f"{len(excerpts)} excerpts of public failures and {len(rules)} logs of tests/rules"), "utf-8")


def _gathered_of(text: str) -> list[Excerpt]:
    number, _, rest = text.partition("=")
    folder, pattern, scores = [*rest.split(":"), "", ""][:3]
    return gather(Path(folder), number, pattern or "[0-9][0-9][0-9]", Path(scores or f"{folder}/score-first.md"))


if __name__ == "__main__":
    main()
