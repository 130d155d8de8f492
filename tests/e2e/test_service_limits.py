"""What a service promises, read where it must hold: limits in the engine's own process, GPU memory proven free, a container's health."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, wait_for
from test_service import CANARY, UNIT, WORDS, Served
from test_service import served as served_machine

served = served_machine

pytestmark = pytest.mark.timeout(900)
SMI = "/usr/local/bin/nvidia-smi"
HELD = "/run/gpu-mib"
MIB = 1 << 20


def limits_of(served: Served, pid: int) -> dict[str, tuple[str, str]]:
    """Name -> (soft, hard), as the kernel has them."""
    text = served.machine.path(f"/proc/{pid}/limits").read_text()
    rows = re.findall(r"^(Max [\w ]+?)\s{2,}(\S+)\s+(\S+)", text, re.MULTILINE)
    return {name: (soft, hard) for name, soft, hard in rows}


def engine_pid(served: Served) -> int:
    return int(served.supervisor()["engine"]["pid"])


def number(text: str) -> float:
    return float("inf") if text == "unlimited" else float(text)


def test_the_unit_s_limits_are_in_force_in_the_engine(served: Served) -> None:
    """As high as this machine's own manager may set them; and exactly what a unit says below that."""
    served.restart()
    wait_for(served.active, 300)
    manager = limits_of(served, 1)
    found = limits_of(served, engine_pid(served))
    for name, wanted in (("Max open files", 1048576.0), ("Max locked memory", float("inf"))):
        may = number(manager[name][1])
        assert number(found[name][0]) == min(wanted, may) or number(found[name][0]) == wanted, (name, found[name], manager[name])
    assert found["Max core file size"][0] == "0"
    drop_in = served.machine.path(f"/etc/systemd/system/{UNIT}.d")
    drop_in.mkdir()
    (drop_in / "limits.conf").write_text("[Service]\nLimitMEMLOCK=4194304\nLimitNOFILE=12345\n")
    served.machine.run("systemctl", "daemon-reload")
    try:
        served.restart()
        wait_for(lambda: served.active() and limits_of(served, engine_pid(served)).get("Max open files") == ("12345", "12345"), 300)
        assert limits_of(served, engine_pid(served))["Max locked memory"] == ("4194304", "4194304")
    finally:
        served.machine.run("rm", "-r", f"/etc/systemd/system/{UNIT}.d")
        served.machine.run("systemctl", "daemon-reload")


@pytest.fixture
def gpu(served: Served) -> Iterator[Path]:
    """A stand-in for the driver's tool, and a record that says: verified with 100 MiB in use. Its file holds the MiB in use now."""
    held = served.machine.path(HELD)
    held.write_text("100")
    tool = served.machine.path(SMI)
    tool.write_text(f'#!/bin/sh\ncase "$*" in *index,memory.used*) echo "0, $(cat {HELD})";; *) exit 9;; esac\n')
    tool.chmod(0o755)
    yield held
    tool.unlink()


def with_gpu(path: Path) -> None:
    document = json.loads(path.read_text())
    total = 97871 * MIB
    document["accelerators"] = [{"index": 0, "name": "stand-in", "driver_total_bytes": total, "free_bytes": total - 100 * MIB}]
    path.write_text(json.dumps(document))


def test_no_start_before_gpu_memory_is_proven_free(served: Served, gpu: Path) -> None:
    wait_for(served.active, 300)
    with_gpu(served.machine.path("/etc/firstlight/services/tiny/machine.json"))
    gpu.write_text("40960")
    former = served.runs()[-1]
    served.restart()
    wait_for(lambda: "waiting for GPU memory" in served.state()["StatusText"], 60)
    assert "GPU 0: 40.00 GiB in use, 0.10 GiB when it was verified" in served.state()["StatusText"]
    assert "fake_engine" not in served.processes(), "no engine starts into memory that somebody holds"
    assert served.state()["ActiveState"] == "activating"
    gpu.write_text("300")
    wait_for(served.active, 120)
    assert served.runs()[-1] != former
    assert served.answers()


def test_no_service_is_installed_into_memory_that_stays_taken(served: Served, gpu: Path) -> None:
    run = next(r for r in reversed(served.runs()) if (r / "verdict.json").exists())
    with_gpu(run / "machine.json")
    gpu.write_text("40960")
    words = [run.name if w == "tiny" else w for w in WORDS]
    refused = served.cli(*words, "--name", "tiny", ok=False)
    assert "gpu-memory-held" in refused, refused
    assert "GPU 0: 40.00 GiB in use" in refused
    gpu.write_text("100")
    served.machine.run("systemctl", "stop", UNIT)
    assert "is active" in served.cli(*words, "--name", "tiny")


SETTINGS = {
    "storage.conf": '[storage]\ndriver = "vfs"\nrunroot = "/run/podman/run"\ngraphroot = "/run/podman/graph"\n',
    "containers.conf": '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
}
# this machine may raise no limits, has no cgroups of its own to give, and its files are the image
NOT_HERE = ("--ulimit", "--ipc", "--publish")
HERE = ("--rootfs", "--network=host", "--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")


class Podman:
    """Debian's podman in the machine. FIRSTLIGHT_TEST_PODMAN: another one, with its own settings."""

    def __init__(self, served: Served) -> None:
        self.served, own = served, os.environ.get("FIRSTLIGHT_TEST_PODMAN")
        self.command, self.env = own or "podman", dict[str, str]()
        if served.machine.run("sh", "-c", f"command -v {self.command}").returncode != 0:
            pytest.skip("no podman on this machine (`apt-get install podman crun catatonit`)")
        if own is None:
            served.machine.path("/run/podman").mkdir(exist_ok=True)
            for name, text in SETTINGS.items():
                served.machine.path(f"/run/podman/{name}").write_text(text)
            self.env = {"CONTAINERS_STORAGE_CONF": "/run/podman/storage.conf", "CONTAINERS_CONF": "/run/podman/containers.conf"}
        tmp = "mount -t tmpfs tmpfs /run/rootfs/tmp && mount -t tmpfs tmpfs /run/rootfs/run"
        made = served.machine.run("sh", "-c", f"mkdir -p /run/rootfs && mount --bind / /run/rootfs && {tmp}")
        assert made.returncode == 0, made.stderr

    def __call__(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return self.served.machine.run(self.command, *words, env=self.env)

    def docker_run(self, script: str) -> "subprocess.CompletedProcess[str]":
        """The rendered `docker run`, but for what this kernel does not allow."""
        words = shlex.split(script.partition("exec docker run")[2].replace("\\\n", " "))
        kept = [w for i, w in enumerate(words) if w not in NOT_HERE and words[i - 1] not in NOT_HERE]
        kept[next(i for i, w in enumerate(kept) if w.startswith("vllm/"))] = "/run/rootfs"
        return self("run", *HERE, *kept)

    def state(self, name: str) -> str:
        return self("inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", name).stdout.strip()


def test_the_rendered_container_runs_and_its_health_is_a_generated_answer(served: Served) -> None:
    """A real one: not root, no capability, nothing writable; ill when no answer comes, and not started at all without its key."""
    wait_for(served.active, 300)
    served.machine.run("systemctl", "stop", UNIT)
    podman, name = Podman(served), "firstlight-tiny"
    program = served.machine.path("/usr/local/bin/vllm")
    program.write_text(f'#!/bin/sh\nTMPDIR=/tmp FAKE_ENGINE_PYTHON={sys.executable} exec {FAKE_PYTHON} -m vllm.entrypoints.cli.main "$@"\n')
    program.chmod(0o755)
    for path in (Path(sys.executable), Path(sys.executable).resolve(), FAKE_PYTHON):
        served.machine.run("chmod", "o+x", *map(str, path.absolute().parents))
    verified = next(r for r in reversed(served.runs()) if (r / "verdict.json").exists())
    script = served.cli("deploy", "docker", verified.name, "--name", "tiny", "--unverified")
    key = str(served.home / "the key")
    assert f"chown 10001 '{key}'" in script, "root's key, a container that is not root: said, not found out"
    started = podman.docker_run(script)
    assert started.returncode == 0, started.stderr
    wait_for(lambda: podman.state(name) in ("exited 1", "stopped 1"), 30)
    assert "the key cannot be read" in podman("logs", name).stdout + podman("logs", name).stderr
    podman("rm", "-f", name)
    served.machine.run("chown", "10001", key)
    try:
        started = podman.docker_run(script)
        assert started.returncode == 0, started.stderr
        asked = [podman("healthcheck", "run", name)]
        wait_for(lambda: asked.append(podman("healthcheck", "run", name)) or asked[-1].returncode == 0 or len(asked) > 40, 60)
        logs = podman("logs", name)
        assert asked[-1].returncode == 0, logs.stdout + logs.stderr + asked[-1].stderr
        inside = podman("exec", name, "cat", "/proc/1/status").stdout
        fields = dict(line.split(":\t", 1) for line in inside.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["10001"] * 4
        assert (int(fields["CapEff"], 16), int(fields["CapBnd"], 16), fields["NoNewPrivs"]) == (0, 0, "1")
        assert podman("exec", name, "touch", "/usr/x").returncode != 0
        assert CANARY not in podman("inspect", name).stdout + served.machine.run("ps", "-eo", "args").stdout
        pid = served.machine.run("pgrep", "-f", "fake_engine.*tiny llama").stdout.split()
        assert pid
        served.machine.run("kill", "-STOP", *pid)
        assert podman("healthcheck", "run", name).returncode != 0, "an engine that hangs is not well"
        served.machine.run("kill", "-CONT", *pid)
    finally:
        podman("rm", "-f", "-t", "0", name)
        served.machine.run("chown", "0", key)
