"""`firstlight probe` and `firstlight doctor` as a person and a program see them."""

import json
from pathlib import Path

import pytest
from recorded_host import recorded_machine

from firstlight.app.group import run
from firstlight.app.views.machine import show_machine
from firstlight.core.machine import Machine
from firstlight.core.schema import decode


def test_json_replays_and_raw_text_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", str(tmp_path), "--no-engines", "--raw", str(tmp_path / "raw"), "-o", "json"]) == 0
    machine = decode(capsys.readouterr().out, Machine)
    assert machine.storage[0].path == str(tmp_path)
    assert "MemTotal" in (tmp_path / "raw" / "meminfo.txt").read_text()
    assert {"uname.txt", "nvidia-smi.txt", "limits.txt"} <= {p.name for p in (tmp_path / "raw").iterdir()}


def test_a_page_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        "nvidia-smi": "8xrtx-pro-6000-held",
        "cuda": "8xrtx-pro-6000",
        "gpu-processes": "three-kinds",
        "uname": "ubuntu",
        "cpu": "epyc",
    }
    cases |= {"nvidia-smi-topo": "8xrtx-pro-6000-pcie", "meminfo": "spark", "tools": "cuda-toolkit", "limits": "small"}
    show_machine(recorded_machine(cases, {"NCCL_PROTO": "LL"}))
    text = capsys.readouterr().out
    assert text.startswith("gpu1  Ubuntu 24.04.2 LTS\n")
    assert "driver      575.57.08, runs CUDA up to 12.9\n" in text
    assert "0  NVIDIA RTX PRO 6000 Blackwell Server Edition, SM 120: 21.71 GiB free of 94.97 GiB, driver 95.59 GiB, PCIe 5 x16\n" in text
    assert "pid 41000 (run demo-20261130-070000-ab12) 73.25 GiB VLLM::Worker_TP0\n" in text
    assert "pid 41001 (container 4f5e6d7c8b9a)" in text
    assert "links: 4 x pix, 8 x node, 16 x sys\n" in text
    assert "environment NCCL_PROTO=LL\n" in text


def test_no_gpu_and_mig_and_unified(capsys: pytest.CaptureFixture[str]) -> None:
    show_machine(recorded_machine({}))
    assert "GPUs\n    none found\n" in capsys.readouterr().out
    show_machine(recorded_machine({"nvidia-smi": "2xh100-one-mig", "nvidia-smi-list": "2xh100-one-mig"}))
    assert "1  NVIDIA H100 80GB HBM3 MIG 3g.40gb, SM 90: 27.50 GiB free of 39.50 GiB" in capsys.readouterr().out
    show_machine(recorded_machine({"nvidia-smi": "gb10", "cuda": "gb10", "meminfo": "spark"}))
    assert "0  NVIDIA GB10, SM 121: 112.74 GiB free of 119.70 GiB, shared with the host" in capsys.readouterr().out


def test_another_host_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", "--host", "ssh://127.0.0.1:1", "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["code"]) == ("Error", "host-unreachable")
    assert run(["probe", "--host", "gpu1"]) == 2


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FIRSTLIGHT_ENGINE_PYTHON", raising=False)
    assert run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "python" in text
    assert "vLLM releases up to" in text
    monkeypatch.setenv("FIRSTLIGHT_ENGINE_PYTHON", str(tmp_path / "gone"))
    assert run(["doctor", "-o", "json"]) == 1
    items = {i["name"]: i for i in json.loads(capsys.readouterr().out)["items"]}
    assert items["FIRSTLIGHT_ENGINE_PYTHON"]["verdict"] == "failed"
    assert "adapters" in items
