"""Whether data copied from GPU to GPU arrives: a functional test, for idle GPUs, by the driver's library and any Python 3."""

import json
from collections.abc import Sequence
from importlib import resources

from msgspec import Struct
from msgspec.structs import replace

from firstlight.core.machine import Link
from firstlight.probe.fact import Fact, shell


class Pair(Struct, frozen=True):
    """equal: None when the copy could not be made. bytes_per_second: the slower direction's."""

    a: int
    b: int
    access: bool
    equal: bool | None
    bytes_per_second: float | None = None
    problem: str | None = None


class Peers(Struct, frozen=True):
    """skipped: GPU -> why it was left alone (in use, or refused)."""

    pairs: list[Pair] = []
    skipped: dict[str, str] = {}
    problem: str | None = None


def parse_peers(text: str) -> Peers:
    line = next((row for row in text.splitlines() if row.startswith("{")), None)
    try:
        answer = json.loads(line) if line else {}
    except ValueError:
        return Peers(problem="unreadable")
    if not isinstance(answer, dict) or "pairs" not in answer:
        return Peers(problem=str(answer.get("problem") or "no answer") if isinstance(answer, dict) else "no answer")
    rows = [Pair(r["a"], r["b"], r["access"], r["equal"], r["bytes_per_second"], r["problem"]) for r in answer["pairs"]]
    return Peers(rows, {str(k): str(v) for k, v in answer.get("skipped", {}).items()})


def peer_copies() -> Fact[Peers]:
    """Takes 64 MiB on each GPU with 2 GiB free, for under a second a pair."""
    source = resources.files("firstlight.probe.inside").joinpath("peers.py").read_text("utf-8")
    return shell("peer-copies", 'python3 -c "$1"', parse_peers, arguments=[source], timeout=120)


def tested(links: Sequence[Link], peers: Peers) -> list[Link]:
    """The links with what the copies showed; a rate that was measured replaces the computed one."""
    found = {(p.a, p.b): p for p in peers.pairs}
    return [_tested(link, found.get((link.a, link.b))) for link in links]


def _tested(link: Link, pair: Pair | None) -> Link:
    if pair is None or pair.equal is None:
        return link
    if not pair.access:  # copied through host memory, which proves nothing about peers
        return replace(link, p2p_allowed=link.p2p_allowed or "NS")
    rate = pair.bytes_per_second if pair.equal else None
    return replace(link, p2p=pair.equal, bandwidth_bytes_per_second=rate or link.bandwidth_bytes_per_second)
