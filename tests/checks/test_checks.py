"""Each case of cases/*.toml: a model, an engine, a machine, and what must and must not be told. A new behaviour is a new case."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from check_models import checkpoint
from recorded_host import recorded_machine

from firstlight.catalog.gpus import imagine
from firstlight.core.answer import EngineAnswer
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, JsonPatch, OverlaySpec
from firstlight.preflight.context import Context
from firstlight.preflight.run import CHECKS, run_checks

HERE = Path(__file__).parent
CASES = [(f"{p.stem}: {c['name']}", c) for p in sorted(HERE.glob("cases/*.toml")) for c in tomllib.loads(p.read_text("utf-8"))["case"]]
KEYS = {
    "name",
    "engine",
    "gpu",
    "facts",
    "device",
    "checkpoint",
    "set",
    "pins",
    "args",
    "extra",
    "candidate",
    "overlay",
    "install",
    "intent",
    "machine",
    "gpu_set",
    "variables",
    "expect",
    "absent",
    "answer",
    "hint",
    "hint_lacks",
    "command",
    "evidence",
}


def machine_of(case: dict[str, Any]) -> Machine:
    if "facts" in case:
        found = recorded_machine(case["facts"], case.get("variables", {}))
    else:
        found = Machine(hostname="cpu", imagined=True) if case["gpu"] == "none" else imagine(case["gpu"])
        found = msgspec.structs.replace(found, environment=case.get("variables", {}))
    changed = msgspec.convert({**msgspec.to_builtins(found), **case.get("machine", {})}, Machine)
    gpus = [msgspec.structs.replace(g, **case.get("gpu_set", {})) for g in changed.accelerators]
    return msgspec.structs.replace(changed, accelerators=gpus)


def context_of(case: dict[str, Any]) -> Context:
    name, _, version = case["engine"].partition("@")
    machine = machine_of(case)
    install = {"version": version, "device": case.get("device"), **case.get("install", {})}
    patches = [JsonPatch(file=s.partition(":")[0], path=s.partition(":")[2].split("."), remove=True) for s in case.get("overlay", [])]
    pins = case.get("pins", {})
    intent = {"model": "m", "engine": case["engine"], "pins": pins, "extra_args": case.get("extra", []), **case.get("intent", {})}
    candidate = Candidate(
        engine=EngineRef(name=name, version=version or None),
        args=case.get("args", []),
        overlay=OverlaySpec(patches=patches, because="test") if patches else None,
        **{"kv_cache_dtype": pins.get("kv_cache_dtype"), **case.get("candidate", {})},
    )
    wanted = bool(case.get("install") or case.get("device"))
    return Context(
        checkpoint=checkpoint(case["checkpoint"], case.get("set", {})),
        machine=machine,
        intent=msgspec.convert(intent, Intent),
        candidate=candidate,
        install=EngineInstall(engine=name, **install) if wanted else None,
        answer=msgspec.convert({"engine": name, **case["answer"]}, EngineAnswer) if "answer" in case else None,
        command=case.get("command", False),
    )


@pytest.mark.parametrize(("name", "case"), CASES, ids=[n for n, _ in CASES])
def test_case(name: str, case: dict[str, Any]) -> None:
    assert set(case) <= KEYS, "a misspelt key would test nothing"
    findings = run_checks(context_of(case))
    told = {f"{f.severity} {f.code}" for f in findings}
    codes = {f.code for f in findings}
    assert set(case.get("expect", [])) <= told
    assert not set(case.get("absent", [])) & codes
    assert "check-broken" not in codes
    wanted = {e.split()[1] for e in case.get("expect", [])} or codes
    hints = " ".join(f.hint or "" for f in findings if f.code in wanted)
    evidence = "\n".join(line for f in findings if f.code in wanted for line in f.evidence)
    assert [h for h in case.get("hint", []) if h not in hints] == [], hints
    assert [h for h in case.get("hint_lacks", []) if h in hints] == []
    assert [e for e in case.get("evidence", []) if e not in evidence] == [], evidence
    assert all(f.evidence for f in findings), "every finding says what it saw"


def test_every_check_has_a_name_of_its_own_and_needs_real_fields() -> None:
    assert len({c.name for c in CHECKS}) == len(CHECKS)
    assert all(hasattr(Context(), need) for c in CHECKS for need in c.needs)


def test_nothing_known_says_nothing() -> None:
    assert run_checks(Context()) == []


def test_ignored_is_marked_and_shown() -> None:
    case = next(c for _, c in CASES if c["name"].startswith("the first user's case"))
    found = run_checks(context_of(case), ignore=frozenset({"attn-backend-unsupported-kv-dtype"}))
    assert [f.ignored for f in found if f.code == "attn-backend-unsupported-kv-dtype"] == [True]


def test_a_check_that_breaks_is_told_and_hides_no_other() -> None:
    from firstlight.preflight.check import Check, remark

    def breaks(_: Context) -> Any:
        raise KeyError("x")

    checks = (Check("bad", (), breaks), Check("good", (), lambda _: [remark("fine", "all is well", evidence=["x"])]))
    assert [f.code for f in run_checks(Context(), checks=checks)] == ["check-broken", "fine"]
