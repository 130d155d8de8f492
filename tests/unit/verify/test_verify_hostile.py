"""Endpoints that break the rules: a message and an exit code in time, never a traceback; and `verify`, `bench` with whatever JSON comes."""

import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result
from corrupt import hostile_kinds
from corrupt.engines import free_port, process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight.app.cli.bench import command as bench
from firstlight.app.cli.verify import command as verify
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.run import Endpoint
from firstlight.verify.client import Api
from firstlight.verify.session import Claims
from firstlight.verify.verify import verify as verify_endpoint

HOSTILE = Path(hostile_kinds.__file__).with_name("hostile.py")
FLUENT = Path(__file__).with_name("verify_fluent.py")
SECONDS = 12.0


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    port = free_port()
    with process([sys.executable, str(HOSTILE), str(port)], port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of silence, short enough for a test."""
    monkeypatch.setattr("firstlight.verify.client.STALL_SECONDS", 1.0)
    monkeypatch.setattr("firstlight.app.endpoints.LIST_SECONDS", 1.5)
    monkeypatch.setattr("firstlight.verify.verify.REQUEST_SECONDS", {"quick": 3.0, "full": 3.0})
    monkeypatch.setattr("firstlight.bench.bench.REQUEST_SECONDS", 3.0)
    monkeypatch.setattr("firstlight.bench.client.STALL_SECONDS", 1.0)


def ask(command: Any, *args: str) -> Result:
    began = time.monotonic()
    result = CliRunner().invoke(command, list(args), standalone_mode=False)
    assert time.monotonic() - began < SECONDS
    assert result.exception is None or isinstance(result.exception, FirstlightError), result.exc_info
    return result


@pytest.mark.parametrize("kind", hostile_kinds.KINDS)
def test_no_hostile_endpoint_passes_and_none_breaks_verify(hostile: str, kind: str) -> None:
    found, named = (ask(verify, f"{hostile}/{kind}/v1", *extra) for extra in ((), ("--model", "demo")))
    assert all(r.exception or r.return_value == Exit.VERIFICATION_FAILED for r in (found, named))
    for r in (found, named):
        if r.exception:
            assert isinstance(r.exception, FirstlightError)
            assert r.exception.code in ("no-model-list", "endpoint-unreachable")
            assert r.exception.evidence


@pytest.mark.parametrize("kind", hostile_kinds.KINDS)
def test_no_hostile_endpoint_breaks_bench(hostile: str, kind: str, recwarn: pytest.WarningsRecorder) -> None:
    r = ask(bench, f"{hostile}/{kind}/v1", "--model", "demo", "--force", "--concurrency", "1")
    if kind not in hostile_kinds.STREAMS_WELL:
        assert isinstance(r.exception, FirstlightError)
        assert r.exception.code in ("bench-no-answer", "endpoint-unreachable")
        assert r.exception.evidence[0]
    assert not recwarn.list


def test_a_relay_that_cuts_every_byte_changes_nothing() -> None:
    ours, cut = free_port(), free_port()
    with (
        process([sys.executable, str(FLUENT), str(ours)], ours),
        process([sys.executable, str(HOSTILE), str(cut), str(ours)], cut),
    ):
        r = ask(verify, f"127.0.0.1:{cut}", "--checks", "streaming,unicode-borders,usage,parallel", "--budget", "60")
    assert r.return_value == Exit.OK, r.output


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncio leaves a failed TLS handshake to the collector
def test_tls_where_there_is_none_and_addresses_that_are_none(hostile: str) -> None:
    for url in (hostile.replace("http:", "https:"), "http://[::1/v1", "ftp://127.0.0.1/v1", "http:///v1", "http://127.0.0.1:1/v1"):
        for command in (verify, bench):
            r = ask(command, url, "--model", "demo", *(["--force"] if command is bench else []))
            assert isinstance(r.exception, FirstlightError)
            assert r.exception.code in ("endpoint-unreachable", "bad-url")
    gc.collect()  # here, where the filter holds, and not in a later test


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=True) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "text",
                    "index",
                    "finish_reason",
                    "logprobs",
                    "top_logprobs",
                    "token",
                    "logprob",
                    "tokens",
                    "usage",
                    "prompt_tokens",
                    "completion_tokens",
                    "total_tokens",
                    "tool_calls",
                    "function",
                    "arguments",
                    "delta",
                    "data",
                    "id",
                    "error",
                    "embedding",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=14,
)


@given(reply=JSON, kind=st.sampled_from(["chat", "embedding", "reward", "base"]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_json_comes_the_verdict_is_a_verdict(reply: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def plain(self: Api, method: str, url: str, body: Any) -> tuple[int, Any]:
        return 200, reply

    async def handler(request: httpx2.Request) -> httpx2.Response:
        text = f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n"
        return httpx2.Response(200, text=text)

    real = httpx2.AsyncClient
    monkeypatch.setattr(Api, "_plain", plain)
    monkeypatch.setattr("firstlight.verify.client.httpx2.AsyncClient", lambda **_: real(transport=httpx2.MockTransport(handler)))
    monkeypatch.setattr("firstlight.verify.limits.asyncio.sleep", _at_once)
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", model="demo", max_model_len=64)
    verdict = await verify_endpoint(endpoint, profile="full", claims=everything(kind), budget_seconds=60)
    assert not verdict.passed


async def _at_once(_: float) -> None:
    return None


def everything(kind: str) -> Claims:
    return Claims(kind=kind, tools=True, reasoning=True, json_schema=True, vision=True)
