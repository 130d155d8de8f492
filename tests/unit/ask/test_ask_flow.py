"""Which Python is asked, with what question, and which answers are remembered: an interpreter that prints a canned answer stands in."""

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight.ask.ask import Where, _put, ask, place
from firstlight.ask.request import Gpu
from firstlight.catalog.gpus import imagine
from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError, UsageError
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef, JsonPatch, OverlaySpec
from firstlight.core.ports import FileInfo
from firstlight.core.schema import decode, encode
from firstlight.probe.local import LocalHost

HOST = LocalHost()
GPU = Gpu(sm=90, count=1, memory=140 << 30, name="H200")
PLAN = Candidate(engine=EngineRef(name="vllm"), tensor_parallel_size=2, kv_cache_memory_bytes=1 << 30)
ANSWER: dict[str, Any] = {
    "phase": "done",
    "version": "0.24.0",
    "seconds": 1.0,
    "config": {"gpu_memory_utilization": 0.92},
    "ranks": [
        {
            "rank": 0,
            "weights": {"parameter_bytes": 1, "allocated_bytes": 512, "tensors": 1, "by_dtype": {}, "additions": []},
            "attention": [],
            "kernels": [],
            "kv": [],
        }
    ],
    "blocks": {"num_gpu_blocks": 7, "kv_tokens": 112, "max_concurrency": 1.5, "groups": []},
    "kv_bytes": 1 << 30,
}


class Engine:
    """`path` is an interpreter that keeps the question it was put and prints `answer`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "engine-python")
        Path(self.path).write_text(f"#!/bin/sh\ncat > {folder}/question\necho x >> {folder}/times\ncat {folder}/answer\n")
        Path(self.path).chmod(0o755)
        self.answers(ANSWER)

    def answers(self, answer: dict[str, Any]) -> None:
        (self.folder / "answer").write_text(json.dumps(answer))

    @property
    def question(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "question").read_text()))

    @property
    def times(self) -> int:
        return len((self.folder / "times").read_text().splitlines()) if (self.folder / "times").exists() else 0


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "llama"}')
    return tmp_path / "model"


def put(engine: Engine, model: Path, machine: Machine, candidate: Candidate = PLAN) -> EngineAnswer:
    install = EngineInstall(engine="vllm", version="0.24.0", build="0.24.0", python=engine.path, device="cuda")
    checkpoint = Checkpoint(ref="m", format="config-only", path=str(model))
    cache = str(engine.folder / "cache")
    return ask(HOST, checkpoint=checkpoint, machine=machine, candidate=candidate, install=install, wheel=None, cache=cache)


def real_machine() -> Machine:
    return Machine(hostname="m", accelerators=[Accelerator(index=0, name="H200", sm=90, cuda_total_bytes=140 << 30)])


def test_a_gpu_that_is_there_is_asked_as_it_is_and_one_that_is_not_is_spoofed(engine: Engine, model: Path) -> None:
    put(engine, model, real_machine())
    assert engine.question["gpu"] is None
    put(engine, model, imagine("2xrtx-pro-6000-blackwell"))
    assert engine.question["gpu"]["sm"] == 120
    assert engine.question["gpu"]["count"] == 2


def test_the_question_carries_flags_ranks_bytes_and_limits(engine: Engine, model: Path) -> None:
    answer = put(engine, model, imagine("2xh200"))
    asked = engine.question
    assert asked["args"] == ["--tensor-parallel-size", "2", "--kv-cache-memory-bytes", str(1 << 30)]
    assert (asked["ranks"], asked["kv_bytes"], asked["model"]) == ([0], 1 << 30, str(model))
    assert asked["timeout"] > 0
    assert asked["memory_limit_bytes"] > 1 << 30
    assert (answer.num_gpu_blocks, answer.kv_tokens, answer.max_concurrency) == (7, 112, 1.5)


def test_the_same_question_is_answered_from_memory_and_another_is_not(engine: Engine, model: Path) -> None:
    first = put(engine, model, imagine("2xh200"))
    assert put(engine, model, imagine("2xh200")) == first
    assert engine.times == 1
    put(engine, model, imagine("2xh100"))
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    put(engine, model, imagine("2xh200"))
    assert engine.times == 3


def test_what_was_not_answered_in_time_is_asked_again(engine: Engine, model: Path) -> None:
    engine.answers({"phase": "model", "ranks": [], "error": {"type": "OutOfTime", "message": "late", "frames": []}})
    assert put(engine, model, imagine("h200")).findings[0].code == "asking-too-slow"
    engine.answers(ANSWER)
    assert put(engine, model, imagine("h200")).findings == []


_ODD = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*ANSWER, "error", "type", "message", "frames"]), inner),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*ANSWER, "error", "unknown_flags", "selector"]), _ODD)
def test_an_answer_of_another_shape_is_a_finding_and_no_traceback(part: str, odd: object) -> None:
    raw = json.loads(json.dumps({**ANSWER, part: odd}))
    where = Where(python="p", build="0.24.0")
    with mock.patch("firstlight.ask.ask.run_inside", return_value=raw):
        answer = _put(HOST, where, {"gpu": None}, PLAN, GPU, cache="/c", timeout=1.0, memory=1)
    assert decode(encode(answer), EngineAnswer) == answer
    assert all(f.evidence for f in answer.findings)


def test_an_answer_that_was_kept_and_damaged_is_asked_anew(engine: Engine, model: Path) -> None:
    first = put(engine, model, imagine("2xh200"))
    (kept,) = (engine.folder / "cache/answers").iterdir()
    kept.write_bytes(kept.read_bytes()[:50])
    assert put(engine, model, imagine("2xh200")) == first
    assert engine.times == 2


def test_an_interpreter_that_dies_leaves_a_finding_and_no_traceback(engine: Engine, model: Path) -> None:
    Path(engine.path).write_text("#!/bin/sh\nkill -9 $$\n")
    answer = put(engine, model, imagine("h200"))
    assert answer.findings[0].code == "asking-failed"
    assert answer.per_gpu is None


def test_a_cpu_build_is_not_asked_about_gpus(engine: Engine) -> None:
    cpu = EngineInstall(engine="vllm", version="0.32.0", python=engine.path, device="cpu")
    with pytest.raises(UsageError) as caught:
        place(HOST, install=None, wheel="vllm==0.16.0", asking=None, machine=imagine("h200"), cache=str(engine.folder))
    assert caught.value.code == "no-asking-environment"
    found = place(HOST, install=cpu, wheel=None, asking=None, machine=Machine(hostname="m"), cache=str(engine.folder))
    assert (found.python, found.real, found.source) == (engine.path, True, None)


def test_a_machine_without_a_gpu_and_one_that_nobody_knows_are_messages(engine: Engine, model: Path) -> None:
    with pytest.raises(InputError, match="no GPU to ask about"):
        put(engine, model, Machine(hostname="m"))
    with pytest.raises(InputError, match="nothing is known"):
        put(engine, model, Machine(hostname="m", accelerators=[Accelerator(index=0, name="X1")]))


FILES = {"config.json": b"{}", "hf_quant_config.json": b"{}", "model.safetensors": b"w" * 5_000_000, "tokenizer.json": b"t"}


class Hub:
    """Files of a model that lies on a hub."""

    ref, revision, root = "org/m", "abc", None

    def list(self) -> list[FileInfo]:
        return [FileInfo(path=name, size=len(data)) for name, data in FILES.items()]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return FILES[path]

    def read_many(self, ranges: Any) -> Any:
        raise NotImplementedError


def test_a_hub_models_small_files_are_laid_in_a_folder_and_its_weights_stay_there(tmp_path: Path) -> None:
    from firstlight.ask.folder import model_folder

    checkpoint = Checkpoint(ref="org/m", format="safetensors", name="m")
    folder = Path(model_folder(HOST, checkpoint, Hub(), str(tmp_path)))
    assert {f.name for f in folder.iterdir()} == {"config.json", "hf_quant_config.json"}
    with pytest.raises(InputError, match=r"no config\.json"):
        model_folder(HOST, checkpoint, None, str(tmp_path))


def test_an_engine_is_asked_about_the_overlay_and_not_about_the_folder_under_it(tmp_path: Path) -> None:
    from firstlight.ask.folder import model_folder

    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text('{"quantization_config": {"kv_cache_scheme": {"num_bits": 8}, "quant_method": "modelopt"}}')
    (own / "model.safetensors").write_bytes(b"weights")
    checkpoint = Checkpoint(ref=str(own), format="safetensors", name="m", path=str(own))
    patch = JsonPatch(file="config.json", path=["quantization_config", "kv_cache_scheme"], remove=True, because="no kernel reads it")
    elsewhere = JsonPatch(file="tokenizer.json", path=["x"], value=1)
    spec = OverlaySpec(patches=[patch, elsewhere], because="no kernel reads an FP8 cache")
    folder = Path(model_folder(HOST, checkpoint, None, str(tmp_path / "cache"), spec))
    assert json.loads((folder / "config.json").read_text()) == {"quantization_config": {"quant_method": "modelopt"}}
    assert {f.name for f in folder.iterdir()} == {"config.json"}
    assert "kv_cache_scheme" in (own / "config.json").read_text()
    assert model_folder(HOST, checkpoint, None, str(tmp_path / "cache")) == str(own)
