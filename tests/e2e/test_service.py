"""A service under a real systemd, its engine a script: what is hard to make a real engine do. `test_service_demo.py` has a real one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import LLAMA, write_safetensors
from e2e_runner import FAKE_PYTHON, run_folders, wait_for
from systemd_machine import SystemdMachine

from firstlight.core.run import Endpoint, LaunchSpec
from firstlight.deploy.deployment import Deployment
from firstlight.deploy.unit import UnitOptions, render_unit

pytestmark = pytest.mark.timeout(900)  # a busy machine may be ten times slower
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
        done = self.machine.run(sys.executable, "-m", "firstlight", *words, env=self.env, seconds=600)
        assert "Traceback" not in done.stderr, done.stderr
        if ok:
            assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cli("get", "runs", "--all", "-o", "json").partition("\n}")[0] + "\n}")["items"][0]
        return found

    def runs(self) -> list[Path]:
        return run_folders(self.machine.path(self.home / "state" / "firstlight" / "runs"))

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
        failed = {c["name"] for c in served.latest("verdict.json")["checks"] if not (c["passed"] or c["skipped"])}
        failed |= {"trivial-continuations", "known-answers", "logprobs"}  # a script knows little, and has no tokens
        served.cli(*up, *(w for name in failed for w in ("--accept", name)))
        served.cli("service", "install", "tiny", "--system", "--yes", "--watchdog", "10", "--ignore", "throw-away-environment")
        yield served
    finally:
        served.machine.close()


@pytest.fixture(autouse=True)
def as_usual(served: Served) -> Iterator[None]:
    """A test that fails leaves the next one an engine that works."""
    yield
    if served.machine.path("/etc/firstlight/services/tiny/launch.json").exists():
        served.set_script("ready")


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


def _slowly(shards: int, seconds: float) -> str:
    """The script of a start that loads a shard now and then."""
    core: list[dict[str, Any]] = [{"log": "(EngineCore pid={pid}) INFO {time} [gpu_model_runner.py:10] Starting to load model {path}..."}]
    for i in range(shards + 1):
        text = f"\rLoading safetensors checkpoint shards: {100 * i // shards:3d}% Completed | {i}/{shards} [00:00<00:00,  1.00it/s]"
        core += [{"log": text, "stream": "stderr"}, {"sleep": seconds}]
    return json.dumps({"steps": [*core, {"serve": {}}]})


def test_a_start_longer_than_its_limit_goes_on_while_milestones_advance(served: Served) -> None:
    """Eighteen seconds of loading against a limit of twelve, with what it loads in the status."""
    drop_in = served.machine.path(f"/etc/systemd/system/{UNIT}.d")
    drop_in.mkdir()
    (drop_in / "limit.conf").write_text("[Service]\nTimeoutStartSec=12\n")
    served.machine.run("systemctl", "daemon-reload")
    served.set_script(_slowly(8, 2.0))
    try:
        began = time.monotonic()
        served.restart()
        statuses = set[str]()
        wait_for(lambda: statuses.add(served.state()["StatusText"]) or served.active(), 150)
        assert time.monotonic() - began > 16
        assert served.state()["NRestarts"] == "0"
        assert any(s.startswith("loading") and "/8 shards" in s for s in statuses), statuses
        assert any(s.endswith(" left") for s in statuses), statuses
    finally:
        served.machine.run("rm", "-r", f"/etc/systemd/system/{UNIT}.d")
        served.machine.run("systemctl", "daemon-reload")


def test_tokens_that_stand_still_are_a_fault_though_everything_answers(served: Served) -> None:
    """Health says 200, a request runs, no token comes: wedged, stacks asked for, restarted."""
    mark = served.folder / "stand still"
    steps = [{"log": "starting"}, {"serve": {}}, {"wait_file": str(mark)}, {"http": {"running": 1, "stuck": True}}]
    served.set_script(json.dumps({"steps": steps}))
    served.restart()
    wait_for(served.active, 300)
    former = served.runs()[-1]
    served.machine.path(mark).touch()
    wait_for(lambda: "wedged" in (former / "events.jsonl").read_text(), 90)
    served.machine.path(mark).unlink()
    wait_for(lambda: served.runs()[-1] != former and served.active(), 300)


def _worker(record: dict[str, Any]) -> int | None:
    """A process of the engine beside its main one; the supervisor notes members once a second."""
    return next((pid for pid, _ in record.get("members") or [] if pid != record["engine"]["pid"]), None)


def test_no_worker_stays_whoever_is_killed(served: Served) -> None:
    """Workers of their own session, without environment, deaf to SIGTERM: one of them killed, then the main process."""
    served.set_script("workers")
    served.restart()
    for whom in ("worker", "main"):
        wait_for(served.active, 300)
        former, record = served.runs()[-1], served.supervisor()
        wait_for(lambda: _worker(served.supervisor()), 30)
        members = [record["engine"]["pid"], *(pid for pid, _ in served.supervisor()["members"])]
        served.kill(_worker(served.supervisor()) or 0 if whom == "worker" else served.state()["MainPID"], "KILL")
        wait_for(lambda: served.runs()[-1] != former and served.active(), 300)  # noqa: B023
        assert served.answers()
        listed = served.processes()
        assert [pid for pid in members if f"\n{pid:>7} " in listed] == [], listed


def test_a_hangup_ends_nothing(served: Served) -> None:
    """Whoever rotates logs may send it; systemd would call the death of it a success, and start nothing."""
    wait_for(served.active, 300)
    pid, record = served.state()["MainPID"], served.supervisor()
    for whom in (pid, record["supervisor"]["pid"], record["guardian"]["pid"]):
        served.kill(whom, "HUP")
    time.sleep(2)
    assert (served.active(), served.state()["MainPID"], served.supervisor()["engine"]) == (True, pid, record["engine"])
    assert served.answers()


def test_the_guardian_s_death_costs_nothing_and_leaves_nothing(served: Served) -> None:
    """The main process still hears of the supervisor, and systemd still has all of them."""
    wait_for(served.active, 300)
    pid, former, record = served.state()["MainPID"], served.runs()[-1], served.supervisor()
    served.kill(record["guardian"]["pid"], "KILL")
    time.sleep(2)
    assert (served.active(), served.state()["MainPID"], served.answers()) == (True, pid, True)
    served.kill(record["supervisor"]["pid"], "KILL")
    wait_for(lambda: served.runs()[-1] != former and served.active(), 300)
    assert f"\n{record['engine']['pid']:>7} " not in served.processes()


def test_down_does_not_say_stopped_of_what_the_unit_starts_again(served: Served) -> None:
    wait_for(served.active, 300)
    former = served.runs()[-1]
    for words in (("down", "tiny"), ("down", "--all")):
        said = served.cli(*words, ok=False)
        assert f"kept up by {UNIT}" in said
        assert "is stopped" not in said
    assert served.active()
    assert served.runs()[-1] == former


def test_told_to_end_it_ends_in_order_and_stays_down(served: Served) -> None:
    wait_for(served.active, 300)
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


def test_a_program_that_is_gone_is_not_restarted(served: Served) -> None:
    path = served.machine.path("/etc/firstlight/services/tiny/launch.json")
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "argv": ["/no/such/engine"]}))
    served.restart()
    wait_for(lambda: served.state()["ActiveState"] == "failed", 60)
    assert (served.state()["ExecMainStatus"], served.state()["NRestarts"]) == ("4", "0")
    path.write_text(before)


def test_status_of_a_service_that_cannot_start_says_its_exit_status_and_where_the_cause_is(served: Served) -> None:
    launch = served.machine.path("/etc/firstlight/services/tiny/launch.json")
    former = launch.read_text()
    try:
        launch.write_text("{{{")
        served.restart()
        wait_for(lambda: served.state()["ActiveState"] == "failed", 60)
        said = served.cli("service", "status", "tiny", ok=False)
        assert "exit status 2: firstlight service logs tiny --journal" in said
        assert "not-json" in served.machine.run("journalctl", "-u", UNIT, "-n", "40", "--no-pager").stdout
    finally:
        launch.write_text(former)
        served.restart()
    wait_for(served.active, 300)


def test_a_crash_loop_stops(served: Served) -> None:
    lines = (Path(__file__).parents[1] / "fake_engine" / "scripts" / "oom-weights.json").read_text()
    core = next(step["spawn"]["steps"] for step in json.loads(lines)["steps"] if "spawn" in step)
    served.restart()
    wait_for(served.active, 300)  # failures are counted from the last start that was verified
    served.set_script(json.dumps({"steps": core}))
    served.restart()
    statuses = set[str]()
    wait_for(lambda: statuses.add(served.state()["StatusText"]) or served.state()["ActiveState"] == "failed", 240)
    state = served.state()
    assert state["Result"] in ("exit-code", "start-limit-hit")
    assert state["NRestarts"] in ("4", "5")
    assert "oom-weight-load" in state["StatusText"]
    assert {"waiting 4 s after 3 failed starts", "waiting 8 s after 4 failed starts"} <= statuses
    served.set_script("ready")


def test_a_disk_that_is_full_at_the_start_is_waited_for(served: Served) -> None:
    runs = str(served.home / "state" / "firstlight" / "runs")
    served.machine.run("systemctl", "stop", UNIT)
    assert served.machine.run("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", runs).returncode == 0
    try:
        served.machine.run("dd", "if=/dev/zero", f"of={runs}/filler", "bs=64k")
        served.restart()
        wait_for(lambda: "waiting for space" in served.state()["StatusText"], 60)
        time.sleep(7)
        assert served.state()["NRestarts"] == "0", "a full disk is no crash loop"
        served.machine.run("rm", f"{runs}/filler")
        wait_for(served.active, 300)
        assert served.answers()
    finally:
        served.machine.run("systemctl", "stop", UNIT)
        served.machine.run("umount", "-l", runs)


def test_a_full_disk_costs_log_lines_and_not_the_service(served: Served) -> None:
    runs = str(served.home / "state" / "firstlight" / "runs")
    served.machine.run("systemctl", "stop", UNIT)
    assert served.machine.run("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", runs).returncode == 0
    try:
        served.set_script("flood")
        served.restart()
        wait_for(served.active, 300)
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


def test_the_key_is_nowhere_but_in_its_file(served: Served) -> None:
    served.restart()
    wait_for(served.active, 300)
    served.cli("report", "tiny", ok=False)
    written = ["/run", "/dev/shm", str(served.folder)]  # /run/upper: every file that anything inside has written or changed
    found = served.machine.run("grep", "-rla", "--exclude-dir=mnt", CANARY, *written, seconds=300).stdout.splitlines()
    assert [f for f in found if not f.endswith("/the key") and not f.startswith("/run/credentials/")] == []
    assert any(f.startswith("/run/upper/") for f in found), "the search sees what was written"
    texts = [served.machine.run("ps", "-eo", "args").stdout, served.machine.run("journalctl", "--no-pager", "-o", "json").stdout]
    texts += [served.machine.run("systemctl", "show", UNIT).stdout, served.machine.run("systemctl", "cat", UNIT).stdout]
    texts += [served.cli(kind, *rest) for kind, *rest in (("describe", "tiny"), ("logs", "tiny"), ("deploy", "compose", "tiny"))]
    texts += [served.cli("deploy", "docker", "tiny"), served.cli("deploy", "quadlet", "tiny"), served.cli("service", "status", "tiny")]
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


WORDS = ("service", "install", "tiny", "--system", "--watchdog", "10", "--ignore", "throw-away-environment", "--yes")


def test_two_installs_at_once_do_not_mix(served: Served) -> None:
    argv = [*served.machine.enter(), sys.executable, "-m", "firstlight", *WORDS, "--no-start"]
    env = {**os.environ, **served.env}
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) for _ in range(2)]
    said = [p.communicate(timeout=180)[0] for p in both]
    codes = sorted(p.returncode for p in both)
    assert codes in ([0, 2], [0, 0]), said
    assert codes == [0, 0] or "service-in-progress" in said[0] + said[1]
    assert served.machine.properties(UNIT, "LoadState", "UnitFileState") == {"LoadState": "loaded", "UnitFileState": "enabled"}


def test_a_full_disk_at_the_install_leaves_the_former_service(served: Served) -> None:
    services = "/etc/firstlight/services"
    kept = served.machine.path(f"{services}/tiny/service.json").read_text()
    served.machine.run("cp", "-a", services, "/run/kept")
    assert served.machine.run("mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", services).returncode == 0
    try:
        served.machine.run("cp", "-a", "/run/kept/tiny", services)
        served.machine.run("dd", "if=/dev/zero", f"of={services}/filler", "bs=4k")
        refused = served.cli(*WORDS, ok=False)
        assert "No space left" in refused, refused
        assert served.machine.path(f"{services}/tiny/service.json").read_text() == kept
        assert "tiny" in served.cli("service", "list")
    finally:
        served.machine.run("umount", "-l", services)


def test_other_people_s_units_and_other_models_are_not_replaced_without_a_word(served: Served) -> None:
    theirs = served.machine.path("/etc/systemd/system/firstlight-theirs.service")
    theirs.write_text("[Service]\nExecStart=/bin/true\n")
    refused = served.cli(*WORDS, "--name", "theirs", ok=False)
    assert "unit-is-not-ours" in refused
    assert theirs.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert "port-of-another-service" in served.cli(*WORDS, "--name", "second", ok=False)
    intent = served.machine.path("/etc/firstlight/services/tiny/intent.json")
    former = intent.read_text()
    document = json.loads(former)
    document["model"] = "/another/model"
    intent.write_text(json.dumps(document))
    refused = served.cli(*(w for w in WORDS if w != "--yes"), "--allow", "stop-service", "--allow", "stop-run", ok=False)
    assert "replace-service" in refused
    assert "/another/model" in refused
    intent.write_text(former)


def test_hostile_words_reach_the_program_as_they_are(served: Served) -> None:
    """systemd itself reads back what was written into the unit: arguments, variables, and a program in an odd place."""
    folder = served.folder / "odd $X %n ; ü"
    folder.mkdir()
    program, out = folder / "dump", served.folder / "dumped"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\njson.dump([sys.argv[1:], os.environb[b'ODD'].decode()], open({str(out)!r}, 'w'))\n"
    )
    program.chmod(0o755)
    words = ["a b", "%n%%H", "$HOME", "${PATH}", "$$", ";", "'", '"', "\\", "\\n", "new\nline", "tab\t", "ü", "\x1b[31m", "", "#", "tail\\"]
    variable = "$HOME ${X} %n \"q\" 'q' \\ \t \n ; # ü"
    launch = LaunchSpec(engine="vllm", argv=["x"], port=1, served_model_name="x")
    deployment = Deployment(name="odd", launch=launch, endpoint=Endpoint(base_url="http://127.0.0.1:1/v1", model="x\n[Service]\nUser=bad"))
    text = render_unit(deployment, UnitOptions(scope="system", argv=[str(program), *words], environment={"ODD": variable}))
    unit = served.machine.path("/etc/systemd/system/firstlight-odd.service")
    unit.write_text(
        text.replace("Type=notify\n", "Type=oneshot\n").replace("Restart=on-failure\n", "").replace("ProtectSystem=strict\n", "")
    )
    served.machine.run("systemctl", "daemon-reload")
    started = served.machine.run("systemctl", "start", "firstlight-odd")
    journal = served.machine.run("journalctl", "--no-pager", "-o", "cat", "-u", "firstlight-odd").stdout
    assert started.returncode == 0, journal
    assert json.loads(served.machine.path(out).read_text()) == [words, variable]
    unit.unlink()


def test_nothing_that_the_machine_wrote_is_outside_of_it(served: Served) -> None:
    for path in (
        "/etc/systemd/system/firstlight-tiny.service",
        "/etc/firstlight/services/tiny",
        "/run/upper",
        "/dev/shm/inside",
        "/tmp/inside",
    ):
        served.machine.run("touch", path)
        assert served.machine.path(path).exists()
        assert not Path(path).exists()
    assert served.machine.run("sh", "-c", "echo 1 >/proc/sys/vm/overcommit_memory").returncode != 0
    assert str(served.folder / "machine" / "mnt" / "root") not in Path("/proc/self/mountinfo").read_text()


def test_uninstalled_while_it_restarts_it_stays_away(served: Served) -> None:
    served.restart()
    wait_for(served.active, 300)
    verified = served.latest("run.json")["id"]
    served.restart()
    wait_for(lambda: served.state()["ActiveState"] == "activating" and served.latest("run.json")["id"] != verified, 60)
    assert "is removed" in served.cli("service", "uninstall", "tiny")
    time.sleep(3)
    assert not served.machine.path(f"/etc/systemd/system/{UNIT}").exists()
    assert "fake_engine" not in served.processes()
    refused = served.cli(*WORDS, ok=False)
    assert "not-verified" in refused, "the newest run of the name is the one that was interrupted"
    assert f"service install {verified} takes" in refused
    assert "is active" in served.cli(*(verified if w == "tiny" else w for w in WORDS), "--name", "tiny")


def test_a_unit_whose_file_somebody_removed_is_stopped_and_forgotten(served: Served) -> None:
    served.restart()
    wait_for(served.active, 300)
    verified = served.latest("run.json")["id"]
    served.machine.path(f"/etc/systemd/system/{UNIT}").unlink()
    assert "is removed" in served.cli("service", "uninstall", "tiny")
    assert "fake_engine" not in served.processes()
    assert served.machine.run("ls", "/etc/systemd/system/multi-user.target.wants").stdout.split() == []
    for _ in range(3):  # each is stopped and started again
        assert "is active" in served.cli(*(verified if w == "tiny" else w for w in WORDS), "--name", "tiny")


def test_uninstall_leaves_nothing(served: Served) -> None:
    assert "is removed" in served.cli("service", "uninstall", "tiny")
    assert not served.machine.path(f"/etc/systemd/system/{UNIT}").exists()
    assert not served.machine.path("/etc/firstlight/services/tiny").exists()
    assert "fake_engine" not in served.processes()
    assert "firstlight-tiny" not in served.machine.run("systemctl", "list-units", "--all", "--no-pager").stdout
    assert os.path.exists(served.folder / "models" / "tiny llama ü" / "model.safetensors")
