"""Every test has its own home and XDG places, reaches nothing but this machine, and has the signals that a shell gives."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # a busy core is no failure
settings.load_profile("any machine")
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Read before any test changes HOME: what `make test` fetched, or what a developer's own cache holds.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
_DEMO = Path(os.environ.get("FIRSTLIGHT_TEST_GGUF") or _CACHE / "firstlight" / "models" / "demo" / DEMO_FILE)
_ENGINE_PYTHON = os.environ.get("FIRSTLIGHT_ENGINE_PYTHON", "")
_STRICT = os.environ.get("FIRSTLIGHT_TEST_STRICT") == "1"

# A minute or two each, `make test-hosts`: services in a real systemd, other hosts through a real sshd.
HOSTS = frozenset(
    {
        "test_service.py",
        "test_service_demo.py",
        "test_service_user.py",
        "test_service_limits.py",
        "test_ssh_cuts.py",
        "test_ssh_guardian.py",
        "test_ssh_odd.py",
        "test_ssh_service.py",
        "test_ssh_verbs.py",
        "test_up_ssh.py",
        "test_up_ssh_cuts.py",
    }
)
# Minutes each, `make test-slow`: damaged models on a real engine, fifty kills.
SLOW = frozenset(
    {
        "test_verify_llamacpp.py",
        "test_fetch_killed.py",
        "test_verify_vllm.py",
        "test_launch_vllm.py",
    }
)

_XDG = {"XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "cache", "XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config"}

# Under nohup, or behind `&` in a script, these are ignored, and whatever the tests start would ignore them too.
for _number, _usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        with suppress(ValueError):  # not the main thread
            signal.signal(_number, _usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in SLOW | HOSTS:
            item.add_marker(pytest.mark.slow)
        if item.path.name in HOSTS:
            item.add_marker(pytest.mark.hosts)


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh HOME; the variables that a user may have set are gone, the engine that `make test-engines` names is kept."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for variable, folder in _XDG.items():
        monkeypatch.setenv(variable, str(home / folder))
    for variable in ("HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "FIRSTLIGHT_ASCII", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    return home


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of this process to anything but loopback or a Unix socket is a fault of the test."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("127.0.0.1", "::1", "localhost") and not str(host).startswith("127."):
            raise AssertionError(f"a test reached for {address}")
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


def _missing(what: str) -> None:
    """`make test` and CI are strict: what they should have brought must be there."""
    if _STRICT:
        pytest.fail(what)
    pytest.skip(what)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """The real SmolLM2 chat model that `firstlight fetch demo` brings."""
    if not _DEMO.exists():
        _missing(f"{_DEMO} is not there: run `make test`, or `firstlight fetch demo`")
    return _DEMO


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter of a real vLLM: what `make engines` made."""
    if not _ENGINE_PYTHON:
        _missing("FIRSTLIGHT_ENGINE_PYTHON is not set: run `make test-engines`")
    return _ENGINE_PYTHON
