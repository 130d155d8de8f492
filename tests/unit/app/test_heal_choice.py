"""Which remedy healing takes, what becomes of it in the next plan, and what it never does by itself."""

from types import SimpleNamespace
from typing import Any

import pytest

from firstlight.app.heal import ANOTHER_PORT, advise, believed, choose, consent_name, constraints_of, touches_quality
from firstlight.app.stages.failing import EngineFailed, _gpu_size
from firstlight.app.stages.yielding import yielded
from firstlight.catalog.rules import builtin_rules
from firstlight.core.diagnosis import Cause, Diagnosis, Remedy, Safety
from firstlight.core.figures import Figure
from firstlight.core.intent import Intent
from firstlight.core.units import GIB
from firstlight.diagnose.diagnose import diagnose
from firstlight.plan.wish import Wish, wish_of


def session(*allowed: str, port: int | None = None) -> Any:
    asked: list[str] = []

    def given(name: str, question: str, *, evidence: tuple[str, ...] = ()) -> bool:
        asked.append(name)
        return name in allowed

    consent = SimpleNamespace(given=given)
    return SimpleNamespace(intent=Intent(model="m", port=port), consent=consent, asked=asked, plan_set=None, constraints=[])


def failed(*remedies: Remedy, code: str = "some-cause") -> Diagnosis:
    return Diagnosis(outcome="failed", cause=Cause(code=code, title="t", confidence=1.0), remedies=list(remedies))


LESS = Remedy(change={"max_model_len": 1024}, safety=Safety.SAFE, because="it fits")
EAGER = Remedy(change={"enforce_eager": True}, safety=Safety.ASK, because="no graphs")
BIOS = Remedy(action="change the BIOS", safety=Safety.NEVER)
NEVER = Remedy(change={"max_num_seqs": 1}, safety=Safety.NEVER)


def test_safe_alone_ask_with_a_yes_never_never() -> None:
    assert choose(session(), failed(BIOS, NEVER, EAGER, LESS)) == LESS
    assert choose(session("enforce-eager"), failed(BIOS, NEVER, EAGER, LESS)) == EAGER
    assert choose(session(), failed(BIOS, NEVER, EAGER)) is None
    asking = session()
    choose(asking, failed(EAGER))
    assert asking.asked == ["enforce-eager"]


def test_what_was_not_done_is_told_with_the_flag_that_does_it() -> None:
    diagnosis, withheld = failed(BIOS, NEVER, EAGER), []
    assert choose(session(), diagnosis, withheld) is None
    assert withheld == [EAGER]
    failure = EngineFailed(diagnosis, evidence=("a line",), hint="change the BIOS")
    assert advise(failure, withheld) == "what would change it needs a yes: --allow enforce-eager"
    assert failure.hint == "firstlight up … --allow enforce-eager; or: change the BIOS"
    assert failure.evidence == (
        "a line",
        "needs a yes (--allow enforce-eager): enforce_eager to True, because no graphs",
        "by hand: max_num_seqs to 1",
    )
    plain = EngineFailed(failed(BIOS), evidence=(), hint="change the BIOS")
    assert (advise(plain, []), plain.hint, plain.evidence) == (None, "change the BIOS", ())


def test_what_is_in_force_did_not_help_and_is_not_taken_again() -> None:
    again = session("enforce-eager")
    again.constraints = constraints_of(failed(LESS), LESS)
    assert choose(again, failed(LESS)) is None
    assert choose(again, failed(LESS, EAGER)) == EAGER


@pytest.mark.parametrize(
    ("change", "altering"),
    [
        ({"kv_cache_dtype": "fp8"}, True),
        ({"--kv-cache-dtype": "fp8_e5m2"}, True),
        ({"kv_cache_dtype": "bfloat16"}, False),
        ({"kv_cache_dtype": None}, False),
        ({"dtype": "float16"}, True),
        ({"quantization": "fp8"}, True),
        ({"trust_remote_code": True}, True),
        ({"max_model_len": 1024, "max_num_seqs": 1}, False),
    ],
)
def test_what_alters_answers_needs_a_yes_whatever_its_rule_says(change: dict[str, Any], altering: bool) -> None:
    remedy = Remedy(change=change, safety=Safety.SAFE)
    assert touches_quality(remedy) is altering
    assert choose(session(), failed(remedy)) == (None if altering else remedy)
    assert choose(session(consent_name(remedy)), failed(remedy)) == remedy


def test_no_rule_changes_quality_or_runs_foreign_code_by_itself() -> None:
    for rule in builtin_rules():
        for template in rule.remedies:
            remedy = Remedy(change=template.change, safety=Safety(template.safety))
            if remedy.change and touches_quality(remedy):
                assert choose(session(), failed(remedy)) is None, rule.code


def test_a_port_that_nobody_asked_for_is_another_one() -> None:
    assert choose(session(), failed(code="port-in-use")) == ANOTHER_PORT
    assert choose(session(port=8000), failed(code="port-in-use")) is None


@pytest.mark.parametrize(
    ("change", "wish"),
    [
        ({"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}, {"env": {"VLLM_ENGINE_READY_TIMEOUT_S": "3600"}}),
        ({"enable_flashinfer_autotune": False}, {"flags": ["--no-enable-flashinfer-autotune"]}),
        ({"disable_custom_all_reduce": True}, {"flags": ["--disable-custom-all-reduce"]}),
        ({"--attention-backend": "FLASHMLA"}, {"flags": ["--attention-backend", "FLASHMLA"]}),
        ({"bind": "127.0.0.1"}, {"flags": ["--host", "127.0.0.1"]}),
    ],
)
def test_every_kind_of_change_reaches_the_command(change: dict[str, Any], wish: dict[str, Any]) -> None:
    made = wish_of(Intent(model="m"), constraints_of(failed(), Remedy(change=change)))
    assert {name: getattr(made, name) for name in wish} == wish


def test_no_change_of_any_rule_is_lost_on_the_way() -> None:
    """A remedy without effect would end healing: the next plan would be the one that failed."""
    for rule in builtin_rules():
        for template in rule.remedies:
            if template.change and template.safety != "never":
                change = {k: 1 if isinstance(v, str) and ("{" in v or "=" in v) else v or None for k, v in template.change.items()}
                change = {k: template.change[k] if template.change[k] is False else v for k, v in change.items()}
                constraints = constraints_of(failed(), Remedy(change=change))
                made = wish_of(Intent(model="m"), constraints)
                assert made != Wish() or all(c.value is None for c in constraints), (rule.code, change)


def test_a_variable_that_the_user_set_yields_too() -> None:
    mine = Intent(model="m", env={"NCCL_DMABUF_ENABLE": "1", "OTHER": "x"}, extra_args=["--max-model-len", "9", "--seed", "1"])
    changes = constraints_of(failed(), Remedy(change={"NCCL_DMABUF_ENABLE": "0", "max_model_len": 4}))
    after = yielded(mine, changes)
    assert after.env == {"OTHER": "x"}
    assert after.extra_args == ["--seed", "1"]


ARGS = "non-default args: {'max_num_batched_tokens': 8192, 'gpu_memory_utilization': 0.95, 'max_model_len': 262144}\n"
ADVICE = "Try increasing `gpu_memory_utilization`"
SAYS = "(EngineCore pid=9) ERROR 11-30 10:00:01 [core.py:1] ValueError:"
NO_BLOCKS = (
    "INFO 11-30 10:00:00 [gpu_worker.py:1] Available KV cache memory: -3.20 GiB\n"
    f"{SAYS} No available memory for the cache blocks. {ADVICE} when initializing.\n"
)
TOO_LONG = (
    f"{SAYS} To serve at least one request with the models's max seq len (262144), "
    "(17.16 GiB KV cache is needed, which is larger than the available KV cache memory (AVAILABLE GiB). Based on the available memory, the "
    f"estimated maximum model length is 178000. {ADVICE} or decreasing `max_model_len` when initializing the engine.\n"
)


def on_gpu(gib: float) -> Any:
    total = Figure(low=gib * GIB, mid=gib * GIB, high=gib * GIB)
    return SimpleNamespace(best=SimpleNamespace(per_gpu=SimpleNamespace(total=total)))


@pytest.mark.parametrize(
    ("log", "gib", "believes"),
    [
        (NO_BLOCKS, 139.8, False),  # 2 % are 2.8 GiB, 3.2 are missing
        (NO_BLOCKS, 280.0, True),
        (TOO_LONG.replace("AVAILABLE", "11.70"), 139.8, False),  # 5.5 GiB are missing
        (TOO_LONG.replace("AVAILABLE", "15.00"), 139.8, True),
        (TOO_LONG.replace("AVAILABLE", "15.00"), 95.0, False),
    ],
)
def test_the_engines_hint_to_raise_the_utilization_is_weighed(log: str, gib: float, believes: bool) -> None:
    """With every yes in the world, a share that gains less than what is missing is not tried."""
    found = diagnose((ARGS + log).encode(), engine="vllm", context={"device_total_gib": gib})
    raised = [r for r in found.remedies if (r.change or {}).get("gpu_memory_utilization", 0.0) > 0.95]
    assert [r for r in raised if believed(r, found.facts, on_gpu(gib))] == (raised if believes else [])
    yes = session("gpu-memory-utilization")
    yes.plan_set = on_gpu(gib)
    assert choose(yes, Diagnosis(outcome="failed", remedies=raised, facts=found.facts)) == (raised[0] if believes else None)


def test_a_diagnosis_of_our_own_run_is_told_the_gpus_size() -> None:
    assert _gpu_size(SimpleNamespace(plan_set=on_gpu(139.8))) == {"device_total_gib": 139.8}  # type: ignore[arg-type]
    assert _gpu_size(SimpleNamespace(plan_set=None)) == {}  # type: ignore[arg-type]


PHASES = {
    "oom-weight-load": set(),
    "oom-profile-run": {"max_num_batched_tokens", "max_num_seqs"},
    "oom-kv-allocation": {"gpu_memory_utilization", "max_num_batched_tokens"},  # the latter where its size is still being measured
    "oom-cudagraph-capture": {"gpu_memory_utilization", "max_num_seqs"},
    "oom-sampler-warmup": {"max_num_seqs", "gpu_memory_utilization"},
    "oom-warmup": {"gpu_memory_utilization"},
    "oom-serving": {"gpu_memory_utilization"},
}


@pytest.mark.parametrize("code", PHASES)
def test_memory_that_runs_out_has_its_own_moves_in_each_phase(code: str) -> None:
    """First moves that healing takes by itself; weights that do not fit have none, because no knob makes them smaller."""
    templates = [t for rule in builtin_rules() if rule.code == code for t in rule.remedies]
    assert templates
    safe = {k for t in templates if t.change and t.safety == "safe" for k in t.change}
    assert safe == PHASES[code]
