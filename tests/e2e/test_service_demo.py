"""The demo model, a real engine, as a system service: made of a saved plan, killed in ten ways, its log rotated."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import run_folders, wait_for
from systemd_machine import SystemdMachine

pytestmark = pytest.mark.timeout(900)  # a busy machine may be ten times slower
UNIT = "firstlight-kept.service"
ENGINE, SUPERVISOR, MAIN, GROUP = "engine", "supervisor", "main", "group"
INSTALL = ("--system", "--name", "kept", "--yes", "--watchdog", "10", "--ignore", "throw-away-environment")


class Kept:
    """A machine whose service `kept` answers with the demo model."""

    def __init__(self, folder: Path, demo: Path) -> None:
        self.machine = SystemdMachine(folder / "machine", own_network=True)
        self.home = folder / "home"
        names = {"STATE": "state", "CACHE": "cache", "DATA": "data", "CONFIG": "config"}
        self.env = {"HOME": str(self.home), "CI": "1", **{f"XDG_{k}_HOME": str(self.home / v) for k, v in names.items()}}
        models = self.home / "cache" / "firstlight" / "models" / "demo"
        models.mkdir(parents=True)
        shutil.copy(demo, models / demo.name)

    def cli(self, *words: str) -> str:
        done = self.machine.run(sys.executable, "-m", "firstlight", *words, env=self.env, seconds=600)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def runs(self) -> list[Path]:
        return run_folders(self.machine.path(self.home / "state/firstlight/runs"))

    def latest(self, name: str) -> Any:
        return json.loads((self.runs()[-1] / name).read_text())

    def state(self) -> dict[str, str]:
        return self.machine.properties(UNIT, "ActiveState", "MainPID", "StatusText", "NRestarts")

    def active(self) -> bool:
        return self.state()["ActiveState"] == "active"

    def processes(self) -> str:
        return self.machine.run("ps", "-eo", "pid,args").stdout

    def answer(self) -> str:
        launch = json.loads(self.machine.path("/etc/firstlight/services/kept/launch.json").read_text())
        question = {"role": "user", "content": "Name the capital of France."}
        body = {"model": launch["served_model_name"], "messages": [question], "max_tokens": 24, "temperature": 0}
        status, found = self.machine.post(f"http://127.0.0.1:{launch['port']}/v1/chat/completions", body, key="none")
        return str(found["choices"][0]["message"]["content"]) if status == 200 else ""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, demo_gguf: Path) -> Iterator[Kept]:
    """Installed from a saved plan: brought up, verified, stopped, started by systemd."""
    kept = Kept(tmp_path_factory.mktemp("kept"), demo_gguf)
    try:
        plan = str(kept.home / "the plan.json")
        kept.cli("plan", "demo", "--engine", "llamacpp", "--max-model-len", "2048", "--save", plan, "--", "--threads", "1")
        said = kept.cli("service", "install", plan, *INSTALL)
        assert f"{UNIT} is active: serving" in said, said
        yield kept
    finally:
        kept.machine.close()


@pytest.mark.llamacpp
def test_a_saved_plan_becomes_a_service(kept: Kept) -> None:
    assert kept.answer().strip()
    launch = json.loads(kept.machine.path("/etc/firstlight/services/kept/launch.json").read_text())
    assert launch["engine"] == "llamacpp"
    assert "2048" in launch["argv"]
    assert kept.latest("verdict.json")["passed"]
    assert kept.processes().count("supervisor.pyz") == 1, "the run that proved the plan made way"
    assert "kept" in kept.cli("service", "list")
    assert "is active (running)" in kept.cli("service", "status", "kept")
    assert "verified" in kept.state()["StatusText"]


def _signal(kept: Kept, whom: str, number: str) -> None:
    record = kept.latest("attempts/1/supervisor.json")
    main = kept.state()["MainPID"]
    if whom == GROUP:
        kept.machine.run("systemctl", "kill", "--signal", number, UNIT)
        return
    pid = main if whom == MAIN else str(record[whom]["pid"])
    assert kept.machine.run("kill", f"-{number}", pid).returncode == 0


@pytest.mark.llamacpp
@pytest.mark.parametrize(
    ("whom", "number"),
    [(ENGINE, "KILL"), (ENGINE, "TERM"), (ENGINE, "SEGV"), (ENGINE, "STOP"), (SUPERVISOR, "KILL"),
     (SUPERVISOR, "STOP"), (MAIN, "KILL"), (MAIN, "ABRT"), (MAIN, "STOP"), (GROUP, "KILL")],
)  # fmt: skip
def test_killed_it_comes_back_verified_and_leaves_nothing(kept: Kept, whom: str, number: str) -> None:
    kept.machine.run("systemctl", "reset-failed", UNIT)
    wait_for(kept.active, 400)
    former, engine = kept.runs()[-1], int(kept.latest("attempts/1/supervisor.json")["engine"]["pid"])
    seen: list[tuple[bool, bool]] = []

    def back() -> bool:
        run, active = kept.runs()[-1], kept.active()
        if run != former:
            seen.append((active, (run / "verdict.json").exists()))
        return bool(seen) and active

    _signal(kept, whom, number)
    wait_for(back, 400)
    assert all(verified for active, verified in seen if active), "active only once verified"
    assert kept.latest("verdict.json")["passed"]
    wait_for(lambda: kept.answer().strip(), 120)  # one question has a time limit, and the machine may be busy
    processes = kept.processes()
    assert f"\n{engine:>7} " not in processes, "the former engine is still there"
    assert processes.count("firstlight service run") == 1
    assert processes.count("supervisor.pyz") == 1


@pytest.mark.llamacpp
def test_its_log_can_be_rotated_by_both_of_logrotate_s_ways(kept: Kept) -> None:
    wait_for(kept.active, 400)
    pid, log = kept.state()["MainPID"], kept.runs()[-1] / "attempts/1/engine.log"
    log.write_bytes(b"")  # copytruncate
    assert kept.answer()
    wait_for(lambda: log.stat().st_size > 0, 30)
    log.rename(log.with_name("engine.log.1"))  # create
    assert kept.answer()
    wait_for(lambda: log.exists() and log.stat().st_size > 0, 30)
    assert kept.active()
    assert kept.state()["MainPID"] == pid
    assert kept.cli("service", "logs", "kept").strip()


@pytest.mark.llamacpp
def test_told_to_stop_it_stays_down_and_starts_again_when_told(kept: Kept) -> None:
    wait_for(kept.active, 400)
    kept.machine.run("systemctl", "stop", UNIT)
    assert kept.state()["ActiveState"] == "inactive"
    assert kept.latest("run.json")["state"] == "stopped"
    assert "supervisor.pyz" not in kept.processes()
    assert "is active after" in kept.cli("service", "restart", "kept")
    assert "is removed" in kept.cli("service", "uninstall", "kept")
    assert "firstlight service run" not in kept.processes()
