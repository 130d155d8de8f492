"""What stands near a failure that no rule knows, by its words: never a verdict."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.catalog.rules import builtin_rules
from firstlight.catalog.words import load_words
from firstlight.core.diagnosis import Safety
from firstlight.diagnose.diagnose import diagnose
from firstlight.diagnose.likeness import words_of
from firstlight.diagnose.units import Unit

FOLDER = Path(__file__).parents[2] / "rules"
UNKNOWN = b"""(APIServer pid=61) INFO 10-12 08:00:06 [model.py:598] Resolved architecture: KestrelForCausalLM
(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165] RuntimeError: Worker failed with error 'wing config num heads divisible by tensor \
parallel size', please check the stack trace above for the root cause
(APIServer pid=61) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_code_whose_words_these_are_is_told_as_near_and_never_as_the_cause() -> None:
    found = diagnose(UNKNOWN)
    assert found.outcome == "failed"
    assert found.cause is None
    assert found.unknown is not None
    assert found.unknown.near[0] == "tp-heads-not-divisible"
    assert (found.unknown.first_exception or "").startswith("line 2 ")
    assert "wing config" in (found.unknown.first_exception or "")
    assert all(r.safety == Safety.NEVER for r in found.remedies)


def test_with_rules_of_ones_own_words_are_not_asked() -> None:
    found = diagnose(UNKNOWN, rules=[r for r in builtin_rules() if r.role == "wrapper"])
    assert found.cause is None
    assert found.unknown is not None


@pytest.mark.parametrize(
    "log",
    [
        b"INFO 10-12 08:00:02 [api_server.py:12] Application startup complete.\nlora adapter flash attention kernel error unsupported\n",
        b"INFO 10-12 08:00:02 [gpu_model_runner.py:5209] Starting to load model\nlora adapter flash attention kernel error unsupported\n",
    ],
)
def test_words_make_no_log_a_failed_one(log: bytes) -> None:
    found = diagnose(log)
    assert found.outcome in ("ready", "incomplete")
    assert found.cause is None


@pytest.mark.parametrize(
    "said",
    [
        "EngineCore failed to start.",
        "WorkerProc hit an exception.",
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "Received sigquit from a child process. It usually means the child failed.",
    ],
)
def test_nothing_but_wrappers_is_not_guessed_at(said: str) -> None:
    wrapper = "RuntimeError: Engine core initialization failed. See root cause above."
    found = diagnose(f"(EngineCore pid=80) ERROR 10-12 08:00:31 [core.py:1165] {said}\n{wrapper}\n".encode())
    assert found.cause is None or found.cause.code in ("cause-not-visible", "workerproc-load-failed-unknown")


def test_no_miss_or_benign_log_of_the_rules_is_failed_because_of_words() -> None:
    rules = list(builtin_rules())
    for path in sorted(FOLDER.glob("*/miss-1.log")) + sorted(FOLDER.glob("benign-*/*.log")):
        log = path.read_bytes()
        with_words, without = diagnose(log), diagnose(log, rules=rules)
        assert with_words.outcome == without.outcome, path
        named = without.cause is not None and without.cause.code != "cause-not-visible"
        assert not named or with_words.cause == without.cause, path


def test_words_are_single_and_name_no_path() -> None:
    frame = 'File "/home/someone/site-packages/vllm/lora/utils.py", line 12, in get_adapter'
    unit = Unit(
        kind="exception", line=1, type="ValueError", text="ValueError: no LoRA in /home/someone/lora-8/adapter.json", frames=[frame]
    )
    told = {"valueerror", "value", "lora", "adapter", "json"}
    assert words_of([unit]) == told | {"t:ValueError", "f:utils.py", "f:get_adapter", "d:site-packages", "d:vllm", "d:lora"}


def test_the_words_of_a_quoted_error_are_read_and_not_those_around_it() -> None:
    text = "RuntimeError: Worker failed with error 'kestrel wing', please check the stack trace above for the root cause"
    assert words_of([Unit(kind="exception", line=1, text=text)]) == {"kestrel", "wing", "runtime"}


def test_every_code_of_the_weights_is_a_cause_that_a_rule_has() -> None:
    causes = {r.code for r in builtin_rules() if r.role == "cause"}
    assert set(load_words().codes) <= causes
    assert all(" " not in word for word in load_words().weights)


def test_shares_are_one_together_and_none_without_a_known_word() -> None:
    words = load_words()
    shares = words.shares({"cuda", "memory", "allocate"})
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert shares == sorted(shares, key=lambda pair: -pair[1])
    assert words.shares({"kestrelxyz"}) == []
    assert set(words.telling({"cuda", "memory", "kestrelxyz"}, shares[0][0])) <= {"cuda", "memory"}


@given(st.text(max_size=400), st.sampled_from(["RuntimeError", "KeyError", "ValueError"]))
def test_any_message_is_read_with_words_as_without_them(message: str, name: str) -> None:
    log = f"Traceback (most recent call last):\n{name}: {message}\n".encode("utf-8", "replace")
    with_words, without = diagnose(log), diagnose(log, rules=list(builtin_rules()))
    assert (with_words.outcome, with_words.cause) == (without.outcome, without.cause)


STRANGE = """(EngineCore pid=12) ERROR 11-30 10:00:00 [core.py:900] EngineCore failed to start.
(EngineCore pid=12) ERROR 11-30 10:00:00 [core.py:900] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-30 10:00:00 [core.py:900]   File "/opt/own/flutes.py", line 7, in tune
(EngineCore pid=12) ERROR 11-30 10:00:00 [core.py:900]     raise FluteError(why)
(EngineCore pid=12) ERROR 11-30 10:00:00 [core.py:900] own.flutes.FluteError: {said}
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""


@pytest.mark.parametrize(
    "said",
    [
        "flute 7 is out of tune",
        "the harbour is closed for the winter",
        "no bread left in the kitchen cupboard",
        "seven swans cannot be counted twice",
        "garden gate blocked by snow",
        "the orchestra refuses to play without a conductor",
        "tea is too cold to drink",
        "window does not open on the north side",
        "the letter was sent to the wrong house",
        "a bridge of paper cannot carry a horse",
        "mountain path lost in the fog at night",
        "apples and pears are not the same size",
    ],
)
def test_what_is_told_in_words_that_were_never_learned_stays_unknown(said: str) -> None:
    found = diagnose(STRANGE.format(said=said).encode())
    assert found.outcome == "failed"
    assert found.cause is None
    assert found.unknown is not None
    assert said in (found.unknown.first_exception or "")
    assert found.unknown.near == []
