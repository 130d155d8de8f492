"""What a manager is told, read from a real notification socket; environments that will not last; whose unit a process is."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firstlight.app.holders import unit_of
from firstlight.app.notifying import EXTENSION_SECONDS, NotifyProgress
from firstlight.app.servicerun import exit_of, with_credential
from firstlight.core.errors import EngineError, Exit, FirstlightError
from firstlight.core.events import Event
from firstlight.core.run import LaunchSpec
from firstlight.deploy.lasting import refuse_throw_away, throw_away_place
from firstlight.deploy.notify import Notifier


class Manager:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(2)

    def heard(self) -> list[str]:
        messages = []
        self.socket.setblocking(False)
        while True:
            try:
                messages.append(self.socket.recv(65536).decode())
            except BlockingIOError:
                return messages


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.socket.close()


def notifier(tmp_path: Path) -> Notifier:
    return Notifier(str(tmp_path / "notify"))


def event(kind: str, stage: str = "watch", **data: object) -> Event:
    return Event(seq=0, time=0.0, run="r", stage=stage, kind=kind, data=data)


def test_messages_are_one_datagram_with_a_line_a_field(manager: Manager, tmp_path: Path) -> None:
    notifier(tmp_path).send(READY=1, STATUS="two\nlines are one")
    assert manager.heard() == ["READY=1\nSTATUS=two lines are one"]


def test_no_manager_and_a_dead_one_cost_nothing(tmp_path: Path) -> None:
    Notifier(None).send(READY=1)
    Notifier(str(tmp_path / "gone")).send(READY=1)


def test_a_message_that_matters_waits_for_a_busy_manager(manager: Manager, tmp_path: Path) -> None:
    """The queue of a notification socket is short, and a manager that is busy reads late: READY must not be lost in it."""
    sender, full = notifier(tmp_path), 0
    while sender.send(STATUS=f"line {full}"):
        full += 1
    assert sender.send(patience=0.1, READY=1) is False
    reader = threading.Timer(0.5, lambda: manager.socket.recv(65536))
    reader.start()
    assert sender.send(patience=20.0, READY=1) is True
    reader.join()
    assert manager.heard()[-1] == "READY=1"


def test_the_watchdog_is_for_the_process_that_it_names() -> None:
    env = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "7"}
    assert Notifier.from_environment(env, 7).watchdog_seconds == 10.0
    assert Notifier.from_environment(env, 8).watchdog_seconds is None
    assert Notifier.from_environment({}, 7).address is None


def test_loading_is_told_as_a_person_would_say_it(manager: Manager, tmp_path: Path) -> None:
    progress = NotifyProgress(notifier(tmp_path), "x", ["watch"])
    for e in (
        event("stage-started"),
        event("phase", name="loading"),
        event("progress", done=12, total=163, unit="shards", eta_seconds=240.0),
    ):
        progress(e)
        progress._told = float("-inf")
    progress(event("progress", done=13, total=163, unit="shards", eta_seconds=238.0))
    told = [m.removeprefix("STATUS=") for m in manager.heard() if m.startswith("STATUS=")]
    assert "loading 12/163 shards, 4 min left" in [t.replace("4 min 0 s", "4 min") for t in told], told


def test_an_estimate_that_comes_right_after_a_step_is_in_the_next_status(manager: Manager, tmp_path: Path) -> None:
    """As a start tells them: a shard, and a moment later what is left. Figures that change all the time are told once a second."""
    progress = NotifyProgress(notifier(tmp_path), "x", ["watch"])
    progress(event("stage-started"))
    progress(event("phase", name="loading"))
    for done in (1, 2):
        progress._told = float("-inf")
        progress(event("progress", done=done, total=8, unit="shards"))
        progress(event("eta", seconds=240.0))
    told = [m.removeprefix("STATUS=") for m in manager.heard() if m.startswith("STATUS=loading 2/8 shards")]
    assert told == ["loading 2/8 shards, 4 min left"]


def test_time_is_extended_by_milestones_and_not_by_silence(manager: Manager, tmp_path: Path) -> None:
    progress = NotifyProgress(notifier(tmp_path), "x", ["watch"])
    progress(event("stage-started"))
    assert f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * 1e6)}" in manager.heard()
    progress._extended = float("-inf")
    progress(event("heartbeat"))
    progress(event("eta", seconds=9.0))
    progress(event("stalled", phase="loading", because="no line for 300 s"))
    heard = manager.heard()
    assert not any(m.startswith("EXTEND") for m in heard)
    assert "STATUS=stalled in loading: no line for 300 s" in heard
    progress(event("phase", name="compiling"))
    assert any(m.startswith("EXTEND") for m in manager.heard())


def test_a_long_estimate_earns_more_time(manager: Manager, tmp_path: Path) -> None:
    progress = NotifyProgress(notifier(tmp_path), "x", ["watch"])
    progress(event("stage-started"))
    progress(event("eta", seconds=1000.0))
    progress._extended = float("-inf")
    progress(event("progress", done=1, total=2, unit="shards", eta_seconds=1000.0))
    assert "EXTEND_TIMEOUT_USEC=1500000000" in manager.heard()


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/tmp/venv/bin/python", "/tmp"),
        ("/home/me/.cache/uv/archive-v0/x/bin/python", "/home/me/.cache/uv"),
        ("/home/me/.local/pipx/.cache/abc/bin/python", "/home/me/.local/pipx/.cache"),
        ("/home/me/.local/share/pipx/venvs/firstlight/bin/python", None),
        ("/home/me/.local/share/uv/tools/firstlight/bin/python", None),
        ("/opt/tmp/bin/python", None),
    ],
)
def test_environments_that_will_be_cleaned(path: str, place: str | None) -> None:
    assert throw_away_place(path, {"HOME": "/home/me"}) == place


def test_a_throw_away_environment_is_refused_with_what_to_do() -> None:
    with pytest.raises(FirstlightError) as caught:
        refuse_throw_away("/tmp/v/bin/python", what="the engine", env={"HOME": "/home/me"})
    assert caught.value.code == "throw-away-environment"
    assert caught.value.exit_code is Exit.PREFLIGHT_BLOCKED
    assert "pipx install" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/vllm.service", ("vllm.service", "system")),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service", ("llm.service", "user")),
        ("0::/user.slice/user-1000.slice/session-3.scope", (None, None)),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", (None, None)),
        ("9:name=systemd:/system.slice/old.service\n0::/system.slice/old.service/firstlight-x", ("old.service", "system")),
    ],
)
def test_the_unit_of_a_process(cgroup: str, unit: tuple[str | None, str | None]) -> None:
    assert unit_of(cgroup) == unit


def test_a_credential_takes_the_place_of_the_key_file(tmp_path: Path) -> None:
    spec = LaunchSpec(engine="vllm", argv=["x"], secret_files={"VLLM_API_KEY": "/home/me/key"})
    assert with_credential(spec, None) == spec
    assert with_credential(spec, str(tmp_path)) == spec
    (tmp_path / "api-key").write_text("k")
    assert with_credential(spec, str(tmp_path)).secret_files == {"VLLM_API_KEY": str(tmp_path / "api-key")}


def test_what_a_restart_cannot_cure() -> None:
    assert exit_of(EngineError("program-not-found", "x")) is Exit.PREFLIGHT_BLOCKED
    assert exit_of(EngineError("oom-serving", "x")) is Exit.ENGINE_FAILED


def test_answers_that_only_came_too_late_are_tried_again_and_wrong_ones_are_not() -> None:
    late, wrong = "chat: POST http://127.0.0.1:8000/v1/chat/completions: no answer within 90 s", "known-answers: 0 of 6 facts"
    for evidence, code in (((late, late), Exit.ENGINE_FAILED), ((late, wrong), Exit.VERIFICATION_FAILED), ((), Exit.VERIFICATION_FAILED)):
        assert exit_of(FirstlightError("verification-failed", "x", evidence=evidence, exit_code=Exit.VERIFICATION_FAILED)) is code
