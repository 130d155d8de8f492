"""How often a cause was right at first sight, by what it was said with: the table "What a confidence means" of docs/diagnose.md.

    python tools/calibrate.py [--sets NAME…]   the table, from bench/results/first_runs.tsv; of these sets only
    python tools/calibrate.py --rows FOLDER…   reads these sets: each folder has a `score-first.md` and a `commit.txt` (its rules)

A row is one failure of a set that nobody had seen: set, code and confidence that were said, the class of the rule that said it, and the
verdict (right, general: a code that is true and says less, wrong). Rows without a cause are not there. The class is read from the rules as
they stood at that commit: `own` knows a message's words and stands for itself; `kind` goes by kinds of words, types and places, or gives
way to a deeper cause (`yields`); `place` knows the place only; `words` the words; `several`: rules of more than one class say that code
with that confidence.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

ROWS = Path(__file__).parents[1] / "bench" / "results" / "first_runs.tsv"
BANDS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.0)
CLASSES = ("own", "kind", "place", "words", "several")
RULES = "src/firstlight/catalog/rules/"
_ROW = re.compile(r"\| \d+ \| (?P<kind>\w+) \| \S+ \| \S+ \| (?P<code>\S+) \| (?P<confidence>[\d.]+) \| (?P<verdict>[\w-]+)")
_VERDICTS = {"right": "right", "right-general": "general", "general": "general", "wrong": "wrong", "wrong-confident": "wrong"}
_NO_CAUSE = frozenset({"None", "cause-not-visible", "workerproc-load-failed-unknown"})


class Row(Struct, frozen=True):
    set: str
    code: str
    confidence: float
    rule_class: str
    verdict: str


def rows() -> list[Row]:
    fields = [line.split("\t") for line in ROWS.read_text().splitlines()[1:]]
    return [Row(s, code, float(confidence), rule_class, verdict) for s, code, confidence, rule_class, verdict in fields]


def class_of(rule: dict[str, object], file: str) -> str:
    if file in ("components", "topics"):
        return {"components": "place", "topics": "words"}[file]
    general = bool(rule.get("yields")) or int(str(rule.get("priority", 0))) < 0 or file in ("kinds", "functions", "places")
    return "kind" if general else "own"


def classes_at(commit: str) -> dict[tuple[str, float], set[str]]:
    """The classes of the rules that say a code with a confidence, as they stood at a commit."""
    found: dict[tuple[str, float], set[str]] = {}
    for path in _git("ls-tree", "--name-only", commit, RULES).split():
        for rule in tomllib.loads(_git("show", f"{commit}:{path}")).get("rule", []) if path.endswith(".toml") else []:
            if rule.get("role", "cause") not in ("benign", "wrapper"):
                key = (rule["code"], float(rule.get("confidence", 0.9)))
                found.setdefault(key, set()).add(class_of(rule, PurePosixPath(path).stem))
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROWS.parents[2], capture_output=True, text=True, check=True).stdout


def read(folders: Iterable[Path]) -> list[Row]:
    """Rows of first runs. Raises OSError, CalledProcessError for a commit that is not there."""
    found: list[Row] = []
    for folder in folders:
        classes = classes_at((folder / "commit.txt").read_text().split()[0])
        for m in filter(None, map(_ROW.match, (folder / "score-first.md").read_text().splitlines())):
            if m["kind"] == "healthy" or m["code"] in _NO_CAUSE or m["verdict"] not in _VERDICTS:
                continue
            said = classes.get((m["code"], float(m["confidence"])), {"words"})
            rule_class = next(iter(said)) if len(said) == 1 else "several"
            found.append(Row(folder.name, m["code"], float(m["confidence"]), rule_class, _VERDICTS[m["verdict"]]))
    return found


def band(confidence: float) -> float:
    return next(low for low in BANDS if confidence >= low)


def table(found: Sequence[Row]) -> str:
    lines = ["| said with | answers | mean | right | right or general | wrong | of them own | kind | place | words |", "|---|" + "---|" * 9]
    for low, high in zip(BANDS, (1.0, *BANDS), strict=False):
        of = [r for r in found if band(r.confidence) == low]
        if of:
            lines.append(_line(f"{low:.2f} to {high:.2f}" if low else "below 0.50", of))
    return "\n".join([*lines, *(_line(c, of) for c in CLASSES if (of := [r for r in found if r.rule_class == c])), _line("all", found)])


def _line(name: str, of: Sequence[Row]) -> str:
    verdicts, classes = Counter(r.verdict for r in of), Counter(r.rule_class for r in of)
    mean, right = sum(r.confidence for r in of) / len(of), verdicts["right"] / len(of)
    either = (verdicts["right"] + verdicts["general"]) / len(of)
    shares = " | ".join(str(classes[c]) for c in CLASSES[:4])
    return f"| {name} | {len(of)} | {mean:.2f} | {right:.0%} | {either:.0%} | {verdicts['wrong']} | {shares} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="+", default=[])
    parser.add_argument("--sets", nargs="+", default=[])
    options = parser.parse_args(arguments)
    if options.rows:
        found = read(options.rows)
        found = [*(r for r in rows() if r.set not in {new.set for new in found}), *found]
        lines = [
            "set\tcode\tconfidence\tclass\tverdict",
            *(f"{r.set}\t{r.code}\t{r.confidence}\t{r.rule_class}\t{r.verdict}" for r in found),
        ]
        ROWS.write_text("\n".join(lines) + "\n")
    print(table([r for r in rows() if not options.sets or r.set in options.sets]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
