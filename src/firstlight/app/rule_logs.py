"""Rules against their own logs: `CODE/hit-*.log` must be diagnosed as CODE, `CODE/miss-*.log` must not."""

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from firstlight.catalog.rules import Rule, builtin_rules, read_rules
from firstlight.core.diagnosis import Diagnosis
from firstlight.core.errors import InputError
from firstlight.diagnose.diagnose import diagnose


class RuleResult(Struct, frozen=True, kw_only=True):
    """One log's result: found lists every code that the diagnosis names."""

    code: str
    path: str
    expected: str
    found: str
    right: bool


def all_rules(files: Iterable[Path] = ()) -> list[Rule]:
    """The built-in rules behind those of the given files. Raises InputError `rule-invalid`, `file-unreadable`."""
    own = [rule for path in files for rule in read_rules(_text(path), str(path))]
    return [*own, *builtin_rules()]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError("file-unreadable", f"{path} cannot be read", evidence=(str(e),)) from None


def run_rule_logs(folder: Path, rules: list[Rule], code: str | None = None) -> list[RuleResult]:
    """Every hit and miss log under `folder` (or of one code), in order of their names."""
    fatal = {r.code: r.fatal and r.role == "cause" for r in rules}
    paths = sorted(p for p in folder.glob(f"{code or '*'}/*.log") if p.name.startswith(("hit-", "miss-")))
    return [_result(path, rules, fatal.get(path.parent.name, True)) for path in paths]


def _result(path: Path, rules: list[Rule], fatal: bool) -> RuleResult:
    code = path.parent.name
    found = diagnose(path.read_bytes(), rules=rules)
    main, others = found.cause.code if found.cause else None, named_besides(found)
    hit = path.name.startswith("hit-")
    seen = main == code or (not fatal and code in others)
    right = seen if hit else main != code and (fatal or code not in others)
    expected = code if hit else f"not {code}"
    return RuleResult(
        code=code, path=str(path), expected=expected, found=f"{main} (besides: {', '.join(others) or 'nothing'})", right=right
    )


def named_besides(found: Diagnosis) -> list[str]:
    return [c.code for c in found.contributing] + [b.code for b in found.benign]
