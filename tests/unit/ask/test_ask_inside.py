"""Scripts are carried by content, run apart, and what they do not answer is a message, not a traceback."""

import sys
from pathlib import Path

import pytest

from firstlight.ask import inside
from firstlight.engines.llamacpp.inside.ask import read
from firstlight.probe.local import LocalHost

HOST = LocalHost()
MIB = 1 << 20
LOG = """\
0.1 I llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16):   90.00 MiB, V (q8_0):   90.00 MiB
0.00.162.525 I llama_context: n_ctx                 = 8192
0.00.170.482 I sched_reserve:        CPU compute buffer size =    22.64 MiB
0.1 I common_memory_breakdown_print: | memory breakdown [MiB]  | total    free     self   model   context   compute    unaccounted |
0.1 I common_memory_breakdown_print: |   - CUDA0 (RTX 4090)    | 24077 = 22945 + ( 12345 = 11000 +    1000 +     345) +         618 |
0.1 I common_memory_breakdown_print: |   - Host                |                    294 =    92 +     180 +      22                |
0.2 I common_memory_breakdown_print: |   - Host                |                    999 =   900 +      90 +       9                |
0.00.186.216 I common_fit_params: successfully fit params to free device memory
""".splitlines()


def test_llama_cpps_breakdown_is_read_per_device_and_the_first_one_counts() -> None:
    answer = read(LOG)
    gpu, host = answer["devices"]
    assert (gpu["name"], gpu["total"], gpu["free"], gpu["model"]) == ("CUDA0 (RTX 4090)", 24077 * MIB, 22945 * MIB, 11000 * MIB)
    assert (host["model"], host["context"], host["compute"]) == (92 * MIB, 180 * MIB, round(22.64 * MIB))
    assert answer["kv"] == [{"bytes": 180 * MIB, "cells": 8192, "layers": 30, "k": "f16", "v": "q8_0"}]
    assert answer["settings"] == {"n_ctx": 8192}
    assert answer["compute"] == {"CPU": round(22.64 * MIB)}
    assert answer["error"] is None


def test_llama_cpps_own_error_line_is_the_refusal() -> None:
    line = "0.0 E llama_model_load: error loading model: unknown model architecture: 'glm5'"
    assert read([line])["error"] == line


def test_every_asking_script_is_carried_under_its_content(tmp_path: Path) -> None:
    folder = inside.carry(HOST, "vllm", "asking", str(tmp_path))
    names = {f.name for f in Path(folder, "asking").iterdir()}
    assert {"main.py", "spoof.py", "stubs.py", "question.py", "__init__.py"} <= names
    assert inside.carry(HOST, "vllm", "asking", str(tmp_path)) == folder


def test_an_interpreter_without_the_engine_answers_with_its_import_error(tmp_path: Path) -> None:
    answer = inside.run_inside(HOST, sys.executable, {"do": "ask", "gpu": None, "model": "m"}, cache=str(tmp_path), timeout=30)
    assert answer["phase"] == "import" or answer["error"]["type"] == "ModuleNotFoundError"
    assert "vllm" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("program", "evidence"),
    [
        ("#!/bin/sh\necho no json\n", "exit status 0"),
        ("#!/bin/sh\nkill -9 $$\n", "out of memory"),
        ("#!/bin/sh\necho why >&2; exit 3\n", "why"),
    ],
)
def test_a_broken_interpreter_is_a_message_with_its_last_words(tmp_path: Path, program: str, evidence: str) -> None:
    python = tmp_path / "python"
    python.write_text(program)
    python.chmod(0o755)
    with pytest.raises(inside.ScriptFailed) as caught:
        inside.run_inside(HOST, str(python), {}, cache=str(tmp_path), timeout=30)
    assert caught.value.code == "asking-failed"
    assert evidence in " ".join(caught.value.evidence)


def test_a_script_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inside, "GRACE", 0.5)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with pytest.raises(inside.ScriptFailed, match="did not end"):
        inside.run_inside(HOST, str(python), {}, cache=str(tmp_path), timeout=0.5)
