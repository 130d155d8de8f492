"""What the supervisor is told before it starts a dead engine again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.app.restarting import STAYS, examine, judge
from firstlight.app.restarts import told
from firstlight.catalog.rules import builtin_rules
from firstlight.core.diagnosis import Diagnosis, Unknown
from firstlight.launch.client import SupervisorEvent

OOM = (
    "(EngineCore pid=9) ERROR 11-30 10:00:01 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 139.80 GiB of which 1.00 GiB is free.\n"
)
LOST = "(EngineCore pid=9) ERROR 11-30 10:00:01 [core.py:1] torch.AcceleratorError: CUDA error: the GPU is lost\n"


def folder(tmp_path: Path, log: str) -> Path:
    (tmp_path / "engine.log").write_text(log)
    (tmp_path / "supervise.json").write_text(json.dumps({"spec": {"engine": "vllm", "argv": []}}))
    return tmp_path


def test_only_this_life_of_the_engine_is_examined(tmp_path: Path) -> None:
    """The death before this one had another cause: its lines stand before `log_offset`."""
    before, now = OOM, "INFO 11-30 10:00:09 [core.py:1] Initializing a V1 LLM engine\n"
    death = {"returncode": 1, "log_bytes": len(before) + len(now), "log_offset": len(before)}
    found = examine(folder(tmp_path, before + now), death)
    whole = examine(tmp_path, {**death, "log_offset": 0})
    assert whole.cause is not None
    assert whole.cause.code.startswith("oom-")
    assert found.cause is None or not found.cause.code.startswith("oom-")


def test_a_lost_gpu_is_not_started_on_again(tmp_path: Path) -> None:
    verdict = judge(examine(folder(tmp_path, LOST), {"returncode": 1, "log_bytes": 0, "log_offset": 0}))
    assert (verdict["restart"], verdict["code"]) == (False, "gpu-lost")
    assert verdict["because"] == STAYS["gpu-lost"]


def test_an_exception_that_no_rule_knows_is_quoted_and_another_start_is_made() -> None:
    unknown = Unknown(first_exception="line 7 [EngineCore]: FluteError: flute 7 plays no tune")
    verdict = judge(Diagnosis(outcome="failed", unknown=unknown))
    assert (verdict["restart"], verdict["code"]) == (True, "cause-unknown")
    assert verdict["evidence"] == [unknown.first_exception]


def test_what_keeps_an_engine_down_are_causes_that_rules_know() -> None:
    assert set(STAYS) <= {rule.code for rule in builtin_rules()}


def test_it_runs_as_the_supervisor_runs_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "firstlight.app.restarting", str(folder(tmp_path, OOM))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={"FIRSTLIGHT_DATA": json.dumps({"returncode": 1})})
    verdict = json.loads(done.stdout)
    assert verdict["restart"] is True
    assert verdict["code"].startswith("oom-")
    assert json.loads((tmp_path / "diagnosis.json").read_text())["cause"]["code"] == verdict["code"]


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        ("diagnosed", {"code": "oom-serving", "title": "no memory", "restart": True}, "oom-serving: no memory; started again"),
        ("diagnosed", {"code": "gpu-lost", "title": "gone", "restart": False, "because": "it stays lost"}, "left down: it stays lost"),
        ("not-diagnosed", {"because": "exit status 1 without an answer", "restart": True}, "cause unknown (exit status 1"),
    ],
)
def test_the_record_tells_every_death(kind: str, data: dict[str, object], says: str) -> None:
    events = [SupervisorEvent(byte=1, time=0.0, kind="ready"), SupervisorEvent(byte=2, time=1.0, kind=kind, data=data)]
    (line,) = told(events)
    assert says in line
