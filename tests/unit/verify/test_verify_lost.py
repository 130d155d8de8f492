"""Connections that end without an answer: what is the connection's, what is one request's, and what is the endpoint's."""

import contextlib
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec
import pytest
from corrupt.engines import free_port, process

from firstlight.core.run import Endpoint
from firstlight.core.verdict import CheckResult, Verdict
from firstlight.verify.verify import LIVES_ON, SILENT, verify

SERVER = Path(__file__).with_name("verify_fluent.py")
Drops = Callable[[bytes], bool]


@pytest.fixture(scope="module")
def good() -> Iterator[Endpoint]:
    port = free_port()
    with process([sys.executable, str(SERVER), str(port)], port):
        yield Endpoint(base_url=f"http://127.0.0.1:{port}/v1", model="demo")


@contextmanager
def relay(upstream: Endpoint, drops: Drops, *, reset: bool = False) -> Iterator[Endpoint]:
    """In front of `upstream`: a request that `drops` picks gets no answer but the end of its connection, by a reset where asked for.
    Other connections give one answer, and close in the moment in which the next request comes: to a client that kept one, it is lost.
    """
    port = int(upstream.base_url.rpartition(":")[2].partition("/")[0])

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                if _pass_on(self.rfile, self.wfile, port, drops):
                    self.rfile.read(1)
                if reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Relay(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield msgspec.structs.replace(upstream, base_url=f"http://127.0.0.1:{server.server_address[1]}/v1")
        finally:
            server.shutdown()
            thread.join()


class Relay(socketserver.ThreadingTCPServer):
    """shutdown_request: without the shutdown() before it, so that the linger option decides how a connection ends."""

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self.close_request(request)


def _pass_on(asked: IO[bytes], answered: IO[bytes], port: int, drops: Drops) -> bool:
    """One request and its answer, as they are. The upstream is asked to close, the client is not told. False: not answered."""
    head = b""
    while (line := asked.readline()) not in (b"", b"\r\n"):
        head += line
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    body = asked.read(int(length or 0))
    if not head or drops(head + body):
        return False
    with socket.create_connection(("127.0.0.1", port)) as upstream:
        upstream.sendall(head.replace(b"onnection: keep-alive", b"onnection: close") + b"\r\n" + body)
        while block := upstream.recv(65536):
            answered.write(block.replace(b"Connection: close\r\n", b""))
    return True


def found(verdict: Verdict, name: str) -> CheckResult:
    return next(c for c in verdict.checks if c.name == name)


def two_greedy(sent: bytes) -> bool:
    return b'"n": 2' in sent and b'"temperature": 0.8' not in sent


@pytest.mark.parametrize("reset", [False, True])
async def test_kept_connections_that_close_under_the_next_request_change_nothing(good: Endpoint, reset: bool) -> None:
    with relay(good, lambda sent: False, reset=reset) as endpoint:
        verdict = await verify(endpoint, checks=["usage", "errors", "parallel"])
    assert verdict.passed, verdict


@pytest.mark.parametrize("reset", [False, True])
async def test_vllm_that_closes_the_connection_for_two_greedy_choices_passes_with_the_deviation_shown(good: Endpoint, reset: bool) -> None:
    with relay(good, two_greedy, reset=reset) as endpoint:
        vllm = msgspec.structs.replace(endpoint, engine="vllm", engine_version="0.25.1")
        verdict = await verify(vllm, profile="full", checks=["n", "seed", "prefix-cache"])
    assert verdict.passed
    n = found(verdict, "n")
    assert n.passed
    assert "closes the connection without an answer for n = 2" in (n.note or "")
    assert found(verdict, "seed").passed
    assert found(verdict, "prefix-cache").passed


async def test_another_engine_fails_that_check_alone(good: Endpoint) -> None:
    with relay(good, two_greedy) as endpoint:
        verdict = await verify(endpoint, profile="full", checks=["n", "seed"])
    assert not verdict.passed
    assert found(verdict, "n").note == LIVES_ON
    assert found(verdict, "seed").passed


async def test_vllm_that_closes_the_connection_for_sampled_choices_as_well_fails(good: Endpoint) -> None:
    with relay(good, lambda sent: b'"n": 2' in sent) as endpoint:
        vllm = msgspec.structs.replace(endpoint, engine="vllm")
        verdict = await verify(vllm, profile="full", checks=["n"])
    assert found(verdict, "n").note == LIVES_ON


async def test_an_endpoint_that_closes_every_connection_is_given_up_after_a_few(good: Endpoint) -> None:
    with relay(good, lambda sent: sent.startswith(b"POST")) as endpoint:
        verdict = await verify(endpoint)
    lost = [c for c in verdict.checks if c.note == LIVES_ON]
    assert len(lost) == 3
    assert [c.note for c in verdict.checks].count(SILENT) == 1
    assert not verdict.passed


async def test_an_endpoint_that_went_away_is_not_asked_any_further(good: Endpoint) -> None:
    seen = []

    def after_a_while(sent: bytes) -> bool:
        seen.append(sent)
        return len(seen) > 3

    with relay(good, after_a_while) as endpoint:
        verdict = await verify(endpoint)
    assert not verdict.passed
    failed = [c for c in verdict.checks if not c.passed and not c.skipped]
    assert failed[0].note == SILENT
    assert all(c.skipped for c in verdict.checks[verdict.checks.index(failed[0]) + 1 :])
