"""Every verb with `--host ssh://` against a real sshd: what it says is said of that machine. Services are in test_ssh_service.py."""

import base64
import hashlib
import json
import os
import shutil
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, wait_for
from far_machine import HOME_THERE, HOST, USER, Far, up_there

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("way_in")]
THERE = ("--host", HOST)
ENGINE = ("--engine", "llamacpp", "--engine-python", sys.executable)


def said(firstlight: Firstlight, *words: str, code: int = 0) -> Any:
    done = firstlight(*words, "-o", "json", seconds=300)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


def test_looking_verbs_look_there(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    items = {i["name"]: i for i in said(firstlight, "doctor", *THERE)["items"]}
    assert items["ssh"]["text"].startswith(f"{USER} on {HOST}")
    assert (items["python3"]["verdict"], items["state folder"]["verdict"]) == ("ok", "ok")
    assert items["state folder"]["text"].startswith(f"{HOME_THERE}/.local/state/firstlight")
    assert "rsync" in items["copies"]["text"]
    assert said(firstlight, "probe", *THERE, "--no-engines")["host"] == HOST
    assert said(firstlight, "inspect", gguf_there, *THERE)["path"] == gguf_there
    assert said(firstlight, "plan", gguf_there, *THERE, "--engine", "llamacpp")["verdict"] == "fits"
    assert firstlight("preflight", gguf_there, *THERE, *ENGINE).returncode == 0
    command = ("--", "llama-server", "-m", gguf_there, "--port", "8123")
    assert firstlight("check", *THERE, *command).returncode in (0, 4)
    for path in ("engine.log", "not there.log"):
        far.inside("runuser", "-u", USER, "--", "mkdir", "-p", f"{HOME_THERE}/logs")
        log = far.machine.path(f"{HOME_THERE}/logs/engine.log")
        log.write_text("INFO 11-30 12:00:00 [api_server.py:1] vLLM API server version 0.25.1\nRuntimeError: CUDA out of memory.\n")
        done = firstlight("watch", f"{HOME_THERE}/logs/{path}", "--replay", *THERE)
        assert (done.returncode == 0) is (path == "engine.log"), done.stderr
    assert said(firstlight, "diagnose", f"{HOME_THERE}/logs/engine.log", *THERE)["kind"] == "Diagnosis"


@pytest.mark.llamacpp
def test_ask_asks_the_engine_there(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    answer = said(firstlight, "ask", gguf_there, *THERE, *ENGINE, "--max-model-len", "2048")
    assert answer["engine"] == "llamacpp"
    assert answer["per_gpu"]["weights"]["mid"] > 90e6
    assert not Path(gguf_there).exists(), "the file is there only, so it was read there"
    kept = far.inside("find", f"{HOME_THERE}/.cache/firstlight/ask", "-type", "f")
    assert kept, "the asking scripts went into that host's own cache"


@pytest.mark.llamacpp
def test_engines_are_listed_made_and_removed_there_through_cuts(far: Far, firstlight: Firstlight, tmp_path: Path) -> None:
    wheels = "/srv/wheels"
    far.inside("mkdir", "-p", wheels)
    far.inside("runuser", "-u", USER, "--", "mkdir", "-p", f"{HOME_THERE}/.config/pip")
    wheel = small_wheel(tmp_path)
    shutil.copy(wheel, far.machine.path(f"{wheels}/{wheel.name}"))
    far.machine.path(f"{HOME_THERE}/.config/pip/pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
    far.inside("chmod", "-R", "a+rX", wheels, f"{HOME_THERE}/.config/pip")
    python = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    install = ("engines", "install", "llamacpp@2026.1.0", *THERE, "--python", python)
    assert firstlight(*install).returncode == 8
    with far.cutting(6, every=0.8):
        made = firstlight(*install, "--yes", "-o", "json", seconds=300)
    assert made.returncode == 0, made.stderr + made.stdout
    place = f"{HOME_THERE}/.local/share/firstlight/engines/llamacpp-2026.1.0"
    assert json.loads(made.stdout)["python"] == f"{place}/bin/python"
    assert far.inside("ls", "-A", place).count("step-") == 0, "nothing of the way it was made is left"
    assert far.of_user() == []
    listed = said(firstlight, "engines", "list", *THERE)["items"]
    assert [r["python"] for r in listed if r["version"] == "2026.1.0"] == [f"{place}/bin/python"]
    assert firstlight("engines", "remove", "llamacpp@2026.1.0", *THERE, "--yes").returncode == 0
    assert not far.machine.path(place).exists()


def small_wheel(folder: Path) -> Path:
    """A package of the engine's name with nothing in it: what pip does with it is real."""
    name, version = "xllamacpp", "2026.1.0"
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    hashes = {n: base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b"=").decode() for n, d in files.items()}
    record = "".join(f"{n},sha256={hashes[n]},{len(d)}\n" for n, d in files.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for n, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(n, data)
    return path


def test_models_and_caches_there_are_listed_and_removed_by_name(far: Far, firstlight: Firstlight, tmp_path: Path) -> None:
    (tmp_path / "to go.gguf").write_bytes(os.urandom(1 << 20))
    there = said(firstlight, "fetch", str(tmp_path / "to go.gguf"), *THERE, "--yes")["path"]
    name = Path(there).parent.name
    rows = {r["name"]: r for r in said(firstlight, "models", "list", *THERE)["items"]}
    assert rows[name]["bytes"] >= 1 << 20
    assert rows[name]["path"] == str(Path(there).parent)
    assert firstlight("models", "rm", name, *THERE).returncode == 8
    holder = f"exec 3<'{there}'; exec sleep 60"
    far.inside("runuser", "-u", USER, "--", "sh", "-c", f"({holder}) >/dev/null 2>&1 </dev/null & sleep 0.3")
    try:
        busy = firstlight("models", "rm", name, *THERE, "--confirm", name)
        assert "model-in-use" in busy.stderr
    finally:
        far.inside("pkill", "-u", USER, "-x", "sleep")
    assert firstlight("models", "rm", name, *THERE, "--confirm", name).returncode == 0
    assert not far.machine.path(there).exists()
    assert said(firstlight, "cache", "list", *THERE)["items"] == [] or far.inside("ls", f"{HOME_THERE}/.cache/firstlight/compile")
    assert firstlight("cache", "prune", "--all", "--yes", *THERE).returncode == 0


@pytest.mark.llamacpp
def test_verbs_about_runs_urls_and_files_take_the_host(far: Far, firstlight: Firstlight, gguf_there: str) -> None:
    assert firstlight(*up_there(gguf_there), seconds=600).returncode == 0
    run = firstlight.runs()[0]
    for verb in (("logs", "far"), ("describe", "far"), ("attach", "far"), ("watch", "far"), ("diagnose", "far"), ("get", "events", "far")):
        assert firstlight(*verb, *THERE).returncode == 0, verb
        assert "run-not-found" in firstlight(*verb, "--host", "ssh://another").stderr
    assert [r["id"] for r in said(firstlight, "get", "runs", *THERE)["items"]] == [run["id"]]
    assert said(firstlight, "get", "runs", "--host", "local")["items"] == []
    url = run["endpoint"]["base_url"]
    verdict = said(firstlight, "verify", url, *THERE)
    assert verdict["passed"], "the URL is that host's loopback"
    composed = firstlight("deploy", "compose", "far", *THERE)
    assert f"user: {far.uid}:" in composed.stdout, composed.stderr + composed.stdout
    assert gguf_there in composed.stdout
    assert firstlight("diff", "far", "far", *THERE).returncode == 0
    assert firstlight("down", "far", *THERE).returncode == 0
    assert far.of_user() == []


@pytest.mark.llamacpp
def test_a_saved_plan_is_applied_measured_and_reported_there(far: Far, firstlight: Firstlight, gguf_there: str, tmp_path: Path) -> None:
    plan, archive = str(tmp_path / "plan.json"), str(tmp_path / "report.tar.gz")
    options = ("--engine", "llamacpp", "--context", "2048", "--save", plan, "--", "--threads", "1")
    assert firstlight("plan", gguf_there, *options).returncode != 0, "the model is not here"
    assert firstlight("plan", gguf_there, *THERE, *options).returncode == 0
    words = ("apply", plan, *THERE, "--name", "far", "--engine-python", sys.executable)
    refused = firstlight(*words, "--host", "local")
    assert refused.returncode != 0
    assert far.of_user() == []
    applied = firstlight(*words, seconds=600)
    assert applied.returncode == 0, applied.stderr
    assert firstlight.runs()[0]["host"] == HOST
    assert said(firstlight, "bench", "far", *THERE, "--profile", "quick")["kind"] == "BenchReport"
    assert firstlight("report", "far", *THERE, "--to", archive).returncode == 0
    assert Path(archive).stat().st_size > 1000
    assert firstlight("down", "far", *THERE).returncode == 0


def test_launch_starts_an_own_command_there(far: Far, firstlight: Firstlight) -> None:
    server = ("--", "/usr/bin/python3", "-m", "http.server", "8791", "--bind", "127.0.0.1")
    options = ("--port", "8791", "--health-path", "/", "--name", "mine", "--served-model-name", "mine")
    started = firstlight("launch", *THERE, *options, *server)
    assert started.returncode == 0, started.stderr
    assert any("http.server 8791" in row for row in far.of_user())
    assert firstlight("down", "mine", *THERE).returncode == 0
    assert far.of_user() == []
    failed = firstlight("launch", *THERE, *options, "--", "/usr/bin/python3", "-c", "raise SystemExit('no such model')")
    assert failed.returncode == 5
    assert "no such model" in failed.stderr


def test_a_plan_is_rehearsed_there_through_cuts_and_leaves_nothing(far: Far, firstlight: Firstlight, llama_folder: Path) -> None:
    """Its folder, engine and verdict are there; cut, interrupted or killed here, nothing runs on there."""
    model = f"{HOME_THERE}/my models/tiny llama ü"
    shutil.copytree(llama_folder, far.machine.path(model))
    far.inside("chown", "-R", USER, HOME_THERE)
    words = ("rehearse", model, *THERE, "--engine", "vllm", "--engine-python", str(FAKE_PYTHON))
    with far.cutting(6, every=1.5):
        report = said(firstlight, *words, "--env", "FAKE_ENGINE_SCRIPT=slow")
    assert report["passed"], report
    assert "one completion runs through every kernel" in report["proves"]
    (run,) = firstlight.runs()
    assert run["host_folder"].startswith(f"{HOME_THERE}/.local/state/firstlight/runs/")
    assert "EngineCore" in far.inside("cat", f"{run['host_folder']}/rehearsal/1/engine.log")
    refuted = firstlight(*words, "--env", "FAKE_ENGINE_SCRIPT=fp8-kv-mla")
    assert (refuted.returncode, "attention backend" in refuted.stdout) == (5, True), refuted.stderr
    for end in (signal.SIGINT, signal.SIGKILL):
        process = firstlight.start(*words, "--env", "FAKE_ENGINE_SCRIPT=never-ready")
        wait_for(lambda: any("fake_engine.py serve" in row for row in far.of_user()))
        process.send_signal(end)
        process.communicate(timeout=120)
        wait_for(lambda: far.of_user() == [])
