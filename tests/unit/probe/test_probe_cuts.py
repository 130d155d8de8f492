"""Which losses are tried again, how long, and of whom."""

from collections.abc import Callable

import pytest

from firstlight.core.errors import HostError
from firstlight.probe import cuts
from firstlight.probe.cuts import ConnectionLost, Cuts
from firstlight.probe.sshscript import is_cut


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(cuts.time, "sleep", pauses.append)
    return pauses


def failing(times: int, error: HostError) -> Callable[[int], int]:
    def ask(losses: int) -> int:
        if losses < times:
            raise error
        return losses

    return ask


LOST, AWAY = ConnectionLost("host-unreachable", "cut"), HostError("host-unreachable", "nobody listens")


def test_a_host_that_was_reached_is_asked_again_with_growing_pauses(no_waiting: list[float]) -> None:
    told: list[str] = []
    connection = Cuts(on_lost=lambda e: told.append(e.message))
    assert connection.across(failing(0, LOST)) == 0
    assert connection.across(failing(6, AWAY)) == 6
    assert no_waiting == [0.3, 0.6, 1.2, 2.0, 2.0, 2.0]
    assert told == ["nobody listens"], "once per question"


def test_of_a_host_that_never_was_reached_only_a_connection_that_broke_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(cuts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(cuts.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    assert Cuts().across(failing(4, LOST)) == 4
    now[0] = 0.0
    with pytest.raises(HostError):
        Cuts().across(failing(10**6, LOST))
    assert cuts.FIRST_CONTACT_SECONDS < now[0] < 30, "some seconds, not minutes"
    with pytest.raises(HostError):
        Cuts().across(failing(1, AWAY))


@pytest.mark.parametrize("code", ["host-login-refused", "host-key-unknown", "command-not-found", "command-timeout", "no-space"])
def test_what_is_no_loss_is_said_at_once(code: str) -> None:
    connection = Cuts()
    connection.reached = True
    with pytest.raises(HostError):
        connection.across(failing(1, HostError(code, "x")))


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(cuts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(cuts.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    connection = Cuts(patience=20.0)
    connection.reached = True
    with pytest.raises(ConnectionLost):
        connection.across(failing(10**6, LOST))
    assert 20.0 < now[0] < 26.0


@pytest.mark.parametrize(
    ("said", "cut"),
    [(b"Connection to gpu1 closed by remote host.", True), (b"client_loop: send disconnect: Broken pipe", True), (b"", True),
     (b"kex_exchange_identification: Connection closed by remote host\n", True), (b"Connection reset by peer", True),
     (b"mux_client_request_session: read from master failed: Connection reset by peer", True),
     (b"Timeout, server gpu1 not responding.", True), (b"ssh: Could not resolve hostname gpu9: Name or service not known", False),
     (b"me@gpu1: Permission denied (publickey).", False), (b"Host key verification failed.\nConnection closed", False),
     (b"connect to host gpu1 port 22: Connection refused", False), (b"connect to host gpu1 port 22: Connection timed out", False)],
)  # fmt: skip
def test_ssh_s_words_for_a_cut_and_for_a_refusal(said: bytes, cut: bool) -> None:
    assert is_cut(said) is cut
