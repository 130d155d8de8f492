"""Names that try to become lines, options or commands; and what docker's and podman's own tools read in what we wrote."""

import http.server
import json
import os
import shlex
import shutil
import socketserver
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_deploy_render import llamacpp, options, vllm

from firstlight.core.errors import FirstlightError, UsageError
from firstlight.deploy.container import container
from firstlight.deploy.deployment import Deployment
from firstlight.deploy.renderers import render
from firstlight.deploy.systemd import Systemd
from firstlight.deploy.unit import render_unit
from firstlight.probe.local import LocalHost

QUADLETS = (os.environ.get("FIRSTLIGHT_TEST_QUADLET"), "/usr/libexec/podman/quadlet", "/usr/lib/podman/quadlet")
EVIL = "x\n[Service]\nExecStart=/bin/evil\n#"


def named(name: str) -> Deployment:
    endpoint = msgspec.structs.replace(vllm().endpoint, model=name)
    launch = msgspec.structs.replace(vllm().launch, served_model_name=name)
    return vllm(endpoint=endpoint, launch=launch)


@pytest.mark.parametrize("name", [EVIL, "a\r[Service]", "%n %H $HOME ${X}", "tail\\", "\x1b[31m", "\udcff"])
def test_a_model_s_name_adds_no_line_to_a_unit(name: str) -> None:
    sane, text = render_unit(named("x"), options()), render_unit(named(name), options())
    assert [line.partition("=")[0] for line in text.splitlines()] == [line.partition("=")[0] for line in sane.splitlines()]
    (description,) = [line for line in text.splitlines() if line.startswith("Description=")]
    assert "%" not in description.replace("%%", "")
    assert description.isprintable()


@pytest.mark.parametrize("value", ["a\x1b[31m", "bell\x07", "\udcff"])
def test_a_variable_that_systemd_would_pass_over_is_refused_by_name(value: str) -> None:
    with pytest.raises(UsageError, match="not-for-a-unit") as refused:
        render_unit(vllm(), options(environment={"VLLM_ODD": value}))
    assert "VLLM_ODD" in refused.value.message


@pytest.mark.parametrize("path", ["/it's/python", '/a "b"/python', "/a\\b/python", "/a\nb"])
def test_a_program_that_systemd_would_not_start_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="not-for-a-unit"):
        render_unit(vllm(), options(argv=[path, "x"]))


@pytest.mark.parametrize("key", ["/k\nExecStart=/bin/evil", "/k ", "/k\\", "/k\t\x00"])
def test_a_key_s_path_that_no_line_can_hold_is_refused(key: str) -> None:
    launch = msgspec.structs.replace(vllm().launch, secret_files={"VLLM_API_KEY": key})
    with pytest.raises(UsageError, match="not-for-a-unit"):
        render_unit(vllm(launch=launch), options())


def test_a_model_s_path_with_a_line_break_costs_a_line_of_hardening_and_a_writable_one_is_refused() -> None:
    launch = msgspec.structs.replace(vllm().launch, model_path="/m\nExecStart=/bin/evil")
    text = render_unit(vllm(launch=launch), options())
    assert "ReadOnlyPaths" not in text
    assert text.count("ExecStart") == 1
    with pytest.raises(UsageError, match="not-for-a-unit"):
        render_unit(vllm(), options(writable=["/home/\nme"]))


@pytest.mark.parametrize("kind", ["compose", "docker", "quadlet"])
def test_a_model_s_name_runs_nothing_where_a_file_is_used(kind: str, tmp_path: Path) -> None:
    (text,) = render(kind, named(f"x\ntouch {tmp_path}/pwned\n#")).values()
    assert not [line for line in text.splitlines() if line.startswith("touch ")]
    if kind == "docker":
        (tmp_path / "docker").write_text("#!/bin/sh\n")
        (tmp_path / "docker").chmod(0o755)
        subprocess.run(["sh", "-c", text], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
        assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("path", ["/m\n[Service]\nExecStart=/bin/evil", "/with:colon"])
def test_quadlet_refuses_a_path_that_it_cannot_hold(path: str) -> None:
    launch = msgspec.structs.replace(vllm().launch, model_path=path)
    with pytest.raises(UsageError, match="not-for-a-unit"):
        render("quadlet", vllm(launch=launch))


class Recorded(Systemd):
    """Says yes to every command: what is tested is what is written, and what is not."""

    folder = ""  # type: ignore[assignment]

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalHost(), "system")
        self.folder = str(folder)
        self.refuses = False

    def call(self, *words: str, timeout: float = 1.0) -> str:
        return ""

    def verify(self, path: str) -> None:
        if self.refuses:
            raise FirstlightError("unit-refused", "no")


def test_somebody_else_s_unit_is_not_written_over_and_a_refused_one_leaves_the_former(tmp_path: Path) -> None:
    systemd, unit = Recorded(tmp_path), tmp_path / "firstlight-x.service"
    unit.write_text("[Service]\nExecStart=/bin/theirs\n")
    with pytest.raises(FirstlightError) as refused:
        systemd.refuse_foreign("x")
    assert refused.value.code == "unit-is-not-ours"
    first, second = (render_unit(vllm(), options(argv=["/bin/true", word])) for word in ("one", "two"))
    unit.unlink()
    systemd.install("x", first)
    systemd.refuse_foreign("x")
    systemd.refuses = True
    with pytest.raises(FirstlightError, match="unit-refused"):
        systemd.install("x", second)
    assert unit.read_text() == first
    unit.unlink()
    with pytest.raises(FirstlightError, match="unit-refused"):
        systemd.install("x", second)
    assert not unit.exists()


# docker's own command line against a daemon that only writes down what it is asked for


class _Daemon(http.server.BaseHTTPRequestHandler):
    asked: dict[str, Any]

    def do_GET(self) -> None:
        self._answer(200, {"ApiVersion": "1.44"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        type(self).asked = json.loads(body or b"{}")
        self._answer(500, {"message": "enough"})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("API-Version", "1.44")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return

    def address_string(self) -> str:
        return "docker"


@pytest.mark.parametrize("deployment", [vllm(), llamacpp()], ids=["vllm", "llamacpp"])
def test_docker_s_own_command_line_reads_in_it_what_was_meant(deployment: Deployment, tmp_path: Path) -> None:
    if shutil.which("docker") is None:
        pytest.skip("docker's command line is not here")
    handler = type("Daemon", (_Daemon,), {"asked": {}})
    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "sock"), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = tmp_path / "run.sh"
    script.write_text(render("docker", deployment)["docker-run.sh"])
    env = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{tmp_path}/sock", "HOME": str(tmp_path)}
    try:
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, env=env, check=False, timeout=60)
    finally:
        server.shutdown()
        server.server_close()
    asked: dict[str, Any] = handler.asked
    assert "enough" in done.stderr, done.stderr
    spec, host = container(deployment), asked["HostConfig"]
    assert (asked["Image"], asked["Entrypoint"], asked["Cmd"]) == (spec.image, ["/bin/sh"], ["-c", spec.script])
    assert asked["User"] == spec.user
    assert asked["Healthcheck"]["Test"] == ["CMD-SHELL", spec.health]
    assert (host["Privileged"], host["ReadonlyRootfs"], host["CapDrop"], host["Init"]) == (False, True, ["ALL"], True)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert host["ShmSize"] == spec.shm_bytes
    ports = [b["HostIp"] for bindings in host["PortBindings"].values() for b in bindings]
    assert ports == ["127.0.0.1"]
    assert {(m["Source"], m["Target"], m.get("ReadOnly", False)) for m in host["Mounts"]} == {
        (m.source, m.target or m.source, m.read_only) for m in spec.mounts
    }
    assert sorted(asked["Env"]) == sorted(f"{k}={v}" for k, v in spec.environment.items())
    limits = {u["Name"]: u["Hard"] for u in host["Ulimits"]}
    assert (limits["memlock"], limits["nofile"]) == (-1, 1048576)
    devices = host["DeviceRequests"] or []
    assert [d["DeviceIDs"] for d in devices] == ([spec.device_ids] if spec.gpus else [])


# podman's own generator


@pytest.mark.parametrize("deployment", [vllm(), llamacpp()], ids=["vllm", "llamacpp"])
def test_podman_s_own_generator_reads_in_it_what_was_meant(deployment: Deployment, tmp_path: Path) -> None:
    generator = next((q for q in QUADLETS if q and os.access(q, os.X_OK)), None)
    if generator is None:
        pytest.skip("podman's quadlet is not here (podman 4.4 or later has it; FIRSTLIGHT_TEST_QUADLET names it)")
    (file, text), *_ = render("quadlet", deployment).items()
    (tmp_path / file).write_text(text)
    env = {"QUADLET_UNIT_DIRS": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([generator, "-dryrun"], capture_output=True, text=True, env=env, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "Loading source" not in line] == []
    (start,) = [line.removeprefix("ExecStart=") for line in done.stdout.splitlines() if line.startswith("ExecStart=")]
    words = [w.replace("$$", "$").replace("%%", "%") for w in shlex.split(start.replace("\\n", "\\\\n"))]
    words = [w.replace("\\\\n", "\\n") for w in words]
    spec = container(deployment)
    assert words[-1] == spec.script
    assert words[-2].endswith(spec.image)
    assert words[words.index("--health-cmd") + 1] == spec.health
    assert words[words.index("--user") + 1] == spec.user
    assert "--read-only" in words
    assert words[words.index("--cap-drop") + 1] == "all"
    assert "--security-opt=no-new-privileges" in words
    assert words[words.index("--publish") + 1] == f"127.0.0.1:{spec.port}:{spec.port}"
    volumes = {words[i + 1] for i, w in enumerate(words) if w == "-v"}
    assert volumes == {f"{m.source}:{m.target or m.source}{':ro' if m.read_only else ''}" for m in spec.mounts}
    variables = {words[i + 1] for i, w in enumerate(words) if w == "--env"}
    assert variables == {f"{k}={v}" for k, v in spec.environment.items()}
    devices = [words[i + 1] for i, w in enumerate(words) if w == "--device"]
    assert devices == ([f"nvidia.com/gpu={d}" for d in spec.device_ids or ["all"]] if spec.gpus else [])
