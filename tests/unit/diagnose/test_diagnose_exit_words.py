"""What is said of a process that ended without a word is said in the words of its own engine."""

from firstlight.diagnose.diagnose import diagnose

START = b"(EngineCore pid=80) INFO 10-12 08:00:20 [core.py:114] Initializing a V1 LLM engine (v0.29.0) with config: model='/m/kestrel'\n"


def test_a_proven_oom_kill_of_vllm_speaks_of_vllm() -> None:
    found = diagnose(START, exit_status=-9, context={"cgroup_oom_kills": 1})
    assert found.cause is not None
    assert found.cause.code == "host-ram-oom"
    assert "llama.cpp" not in found.cause.title
    said = " ".join(r.action or "" for r in found.remedies)
    assert "--cpu-offload-gb" in said
    assert "--ctx-size" not in said


def test_a_crash_names_its_signal() -> None:
    found = diagnose(START, exit_status=-11)
    assert found.cause is not None
    assert found.cause.title == "a process crashed in native code (SIGSEGV)"
