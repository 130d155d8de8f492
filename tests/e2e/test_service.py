"""A service under a real systemd: ready only after a verified answer, killed in ten ways, gone without a trace."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LLAMA, write_safetensors
from e2e_runner import FAKE_PYTHON, wait_for
from systemd_machine import SystemdMachine

UNIT = "firstlight-tiny.service"
CANARY = "canary-7f3a9c5e1b"


class Served:
    """A machine with a verified run of the fake engine and, once installed, its service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home with späce"
        self.home.mkdir(parents=True)
        self.machine = SystemdMachine(folder / "machine", own_network=True)
        names = {"STATE": "state", "CACHE": "cache", "DATA": "data", "CONFIG": "config"}
        self.env = {"HOME": str(self.home), "CI": "1", **{f"XDG_{k}_HOME": str(self.home / v) for k, v in names.items()}}

    def cli(self, *words: str, ok: bool = True) -> str:
        done = self.machine.run(sys.executable, "-m", "firstlight", *words, env=self.env)
        assert "Traceback" not in done.stderr, done.stderr
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli("get", "runs", "--all", "-o", "json").partition("\n}")[0] + "\n}")["items"][0]
        return found

    def runs(self) -> list[Path]:
        return sorted(self.machine.path(self.home / "state" / "firstlight" / "runs").iterdir(), key=lambda p: p.stat().st_mtime)

    def latest(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.runs()[-1] / name).read_text())
        return found

    def supervisor(self) -> dict[str, Any]:
        return self.latest("attempts/1/supervisor.json")

    def state(self) -> dict[str, str]:
        return self.machine.properties(UNIT, "ActiveState", "SubState", "NRestarts", "MainPID", "StatusText", "Result", "ExecMainStatus")

    def active(self) -> bool:
        return self.state()["ActiveState"] == "active"

    def kill(self, pid: int | str, number: str) -> None:
        assert self.machine.run("kill", f"-{number}", str(pid)).returncode == 0

    def processes(self) -> str:
        return self.machine.run("ps", "-eo", "pid,args").stdout

    def set_script(self, script: str) -> None:
        """The service's engine behaves otherwise from its next start on."""
        path = self.machine.path("/etc/firstlight/services/tiny/launch.json")
        launch = json.loads(path.read_text())
        launch["env"] = {**launch["env"], "FAKE_ENGINE_SCRIPT": script}
        path.write_text(json.dumps(launch))

    def restart(self) -> None:
        self.machine.run("systemctl", "reset-failed", UNIT)
        self.machine.run("systemctl", "restart", "--no-block", UNIT)

    def answers(self) -> bool:
        launch = json.loads(self.machine.path("/etc/firstlight/services/tiny/launch.json").read_text())
        body = {"model": launch["served_model_name"], "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        status, answer = self.machine.post(f"http://127.0.0.1:{launch['port']}/v1/chat/completions", body, key=CANARY)
        return status == 200 and bool(answer["choices"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The machine, a verified run with a key, and its service, for all tests of this file."""
    served = Served(tmp_path_factory.mktemp("service"))
    try:
        model = served.folder / "models" / "tiny llama ü"
        _make_model(model)
        key = served.home / "the key"
        served.machine.path(key).write_text(CANARY + "\n")
        served.machine.path(key).chmod(0o600)
        up = ["up", str(model), "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--name", "tiny", "--skip", "bench"]
        up += ["--api-key-file", str(key)]
        served.cli(*up, ok=False)
        failed = [c["name"] for c in served.latest("verdict.json")["checks"] if not (c["passed"] or c["skipped"])]
        served.cli(*up, *(w for name in failed for w in ("--accept", name)))
        served.cli("service", "install", "tiny", "--system", "--yes", "--watchdog", "10", "--ignore", "throw-away-environment")
        yield served
    finally:
        served.machine.close()


def _make_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    tensors = {"model.embed_tokens.weight": ("BF16", [256, 64], 256 * 64 * 2), "model.norm.weight": ("BF16", [64], 128)}
    shapes = {"self_attn.q_proj": [64, 64], "self_attn.k_proj": [32, 64], "self_attn.v_proj": [32, 64], "self_attn.o_proj": [64, 64],
              "mlp.gate_proj": [128, 64], "mlp.up_proj": [128, 64], "mlp.down_proj": [64, 128],
              "input_layernorm": [64], "post_attention_layernorm": [64]}  # fmt: skip
    for layer in range(2):
        for name, shape in shapes.items():
            size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            tensors[f"model.layers.{layer}.{name}.weight"] = ("BF16", shape, size)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"})
    )


def test_ready_only_after_a_verified_answer(served: Served) -> None:
    served.restart()
    seen: list[tuple[str, bool]] = []
    statuses: list[str] = []

    def look() -> bool:
        state, verified = served.state(), (served.runs()[-1] / "verdict.json").exists()
        seen.append((state["ActiveState"], verified))
        statuses.append(state["StatusText"])
        return state["ActiveState"] == "active" and verified

    wait_for(look, 60)
    assert not [row for row in seen if row == ("active", False)][1:], "active before the verdict was written"
    assert served.latest("verdict.json")["passed"]
    assert served.latest("run.json")["state"] == "serving"
    assert any(s.startswith("serving tiny llama") for s in statuses)
    assert served.answers()
    status = served.cli("service", "status", "tiny")
    assert "is active (running)" in status
    assert "verified" in status


ENGINE, WORKER, SUPERVISOR, MAIN = "engine", "worker", "supervisor", "main"


def _worker(record: dict[str, Any]) -> int | None:
    """A process of the engine beside its main one; the supervisor notes members once a second."""
    return next((pid for pid, _ in record.get("members") or [] if pid != record["engine"]["pid"]), None)


def _pid(served: Served, whom: str) -> int:
    if whom == WORKER:
        return int(wait_for(lambda: _worker(served.supervisor()), 15))
    record = served.supervisor()
    return int(served.state()["MainPID"]) if whom == MAIN else int(record[whom]["pid"])


@pytest.mark.parametrize(
    ("whom", "number"),
    [
        (ENGINE, "KILL"), (ENGINE, "TERM"), (ENGINE, "SEGV"), (ENGINE, "STOP"), (WORKER, "KILL"),
        (SUPERVISOR, "KILL"), (SUPERVISOR, "TERM"), (MAIN, "KILL"), (MAIN, "ABRT"), (MAIN, "STOP"),
    ],
)  # fmt: skip
def test_killed_it_comes_back_verified_and_leaves_nothing(served: Served, whom: str, number: str) -> None:
    served.machine.run("systemctl", "reset-failed", UNIT)
    wait_for(served.active, 60)
    former, engine = served.runs()[-1], int(served.supervisor()["engine"]["pid"])
    served.kill(_pid(served, whom), number)
    wait_for(lambda: served.runs()[-1] != former and served.active(), 90)
    assert served.latest("verdict.json")["passed"]
    assert served.answers()
    processes = served.processes()
    assert f"\n{engine:>7} " not in processes, "the former engine is still there"
    assert processes.count("-m firstlight service run") == 1
    assert processes.count("supervisor.pyz") == 1


def test_told_to_end_it_ends_in_order_and_stays_down(served: Served) -> None:
    wait_for(served.active, 60)
    served.kill(served.state()["MainPID"], "TERM")
    wait_for(lambda: served.state()["ActiveState"] == "inactive", 60)
    assert served.state()["Result"] == "success"
    assert served.latest("run.json")["state"] == "stopped"
    assert "fake_engine" not in served.processes()
    time.sleep(3)
    assert served.state()["ActiveState"] == "inactive"


def test_wrong_answers_are_never_ready_and_not_restarted(served: Served) -> None:
    served.set_script("garbage")
    served.restart()
    wait_for(lambda: served.state()["ActiveState"] == "failed", 90)
    state = served.state()
    assert (state["ExecMainStatus"], state["NRestarts"]) == ("6", "0")
    assert "verification-failed" in state["StatusText"]
    assert "fake_engine" not in served.processes()
    served.set_script("ready")


def test_a_program_that_is_gone_is_not_restarted(served: Served) -> None:
    path = served.machine.path("/etc/firstlight/services/tiny/launch.json")
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "argv": ["/no/such/engine"]}))
    served.restart()
    wait_for(lambda: served.state()["ActiveState"] == "failed", 60)
    assert (served.state()["ExecMainStatus"], served.state()["NRestarts"]) == ("4", "0")
    path.write_text(before)


def test_a_crash_loop_stops(served: Served) -> None:
    served.set_script("oom-weights")
    served.restart()
    wait_for(lambda: served.state()["ActiveState"] == "failed", 200)
    state = served.state()
    assert state["Result"] in ("exit-code", "start-limit-hit")
    assert int(state["NRestarts"]) >= 4
    assert "oom-weight-load" in state["StatusText"]
    served.set_script("ready")


def test_a_full_disk_costs_log_lines_and_not_the_service(served: Served) -> None:
    runs = str(served.home / "state" / "firstlight" / "runs")
    served.machine.run("systemctl", "stop", UNIT)
    assert served.machine.run("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", runs).returncode == 0
    try:
        served.set_script("flood")
        served.restart()
        wait_for(served.active, 120)
        served.machine.run("dd", "if=/dev/zero", f"of={runs}/filler", "bs=64k")
        assert served.answers()
        assert served.active()
        time.sleep(12)  # longer than the watchdog
        assert served.active()
        log = served.runs()[-1] if (served.runs()[-1] / "run.json").exists() else served.runs()[-2]
        (log / "attempts/1/engine.log").write_bytes(b"")  # rotated by copy and truncate
        assert served.answers()
    finally:
        served.machine.run("systemctl", "stop", UNIT)
        served.machine.run("umount", "-l", runs)
        served.set_script("ready")


def test_the_key_is_nowhere_but_in_its_file(served: Served) -> None:
    served.restart()
    wait_for(served.active, 90)
    served.cli("report", "tiny", ok=False)
    key = str(served.home / "the key")
    places = ["/etc", "/run", "/var/log", str(served.home), f"{served.folder}", "/root/.cache/firstlight"]
    found = served.machine.run("grep", "-rlIa", "--exclude-dir=mnt", CANARY, *places).stdout.splitlines()
    mine = [f for f in found if f != key and "/run/credentials/" not in f]
    assert mine == []
    texts = [served.machine.run("ps", "-eo", "args").stdout, served.machine.run("journalctl", "--no-pager", "-o", "json").stdout]
    texts += [served.machine.run("systemctl", "show", UNIT).stdout, served.machine.run("systemctl", "cat", UNIT).stdout]
    texts += [served.cli(kind, *rest) for kind, *rest in (("describe", "tiny"), ("logs", "tiny"), ("deploy", "compose", "tiny"))]
    texts += [served.cli("deploy", "docker", "tiny"), served.cli("service", "status", "tiny")]
    assert not any(CANARY in t for t in texts)
    assert "service tiny" in texts[1] or "verify" in texts[1], "the journal has the service's own lines"


def test_systemd_itself_has_nothing_to_say_against_the_unit(served: Served) -> None:
    verified = served.machine.run("systemd-analyze", "--man=no", "verify", f"/etc/systemd/system/{UNIT}")
    assert [line for line in verified.stderr.splitlines() if UNIT in line] == []
    shown = served.machine.run("systemd-analyze", "security", "--no-pager", UNIT).stdout.strip().splitlines()[-1]
    exposure = float(shown.partition("service: ")[2].split()[0])
    assert exposure < 4.5, shown


def test_others_that_hold_the_port_are_named_with_their_unit(served: Served) -> None:
    served.machine.run("systemctl", "stop", UNIT)
    port = json.loads(served.machine.path("/etc/firstlight/services/tiny/launch.json").read_text())["port"]
    old = served.machine.path("/etc/systemd/system/old-vllm.service")
    old.write_text(f"[Service]\nExecStart={sys.executable} -m http.server --bind 127.0.0.1 {port}\n[Install]\nWantedBy=multi-user.target\n")
    served.machine.run("systemctl", "daemon-reload")
    served.machine.run("systemctl", "start", "old-vllm")
    wait_for(lambda: f":{port:04X}" in served.machine.run("cat", "/proc/net/tcp").stdout)
    words = ("service", "install", "tiny", "--system", "--watchdog", "10", "--ignore", "throw-away-environment")
    refused = served.cli(*words, ok=False)
    assert "old-vllm.service" in refused
    assert "stop-units" in refused
    assert "is active" in served.cli(*words, "--yes")
    assert served.machine.properties("old-vllm", "ActiveState")["ActiveState"] == "inactive"


def test_uninstall_leaves_nothing(served: Served) -> None:
    assert "is removed" in served.cli("service", "uninstall", "tiny")
    assert not served.machine.path(f"/etc/systemd/system/{UNIT}").exists()
    assert not served.machine.path("/etc/firstlight/services/tiny").exists()
    assert "fake_engine" not in served.processes()
    assert "firstlight-tiny" not in served.machine.run("systemctl", "list-units", "--all", "--no-pager").stdout
    assert os.path.exists(served.folder / "models" / "tiny llama ü" / "model.safetensors")
