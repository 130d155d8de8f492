"""Each folder FACT/CASE is one fixture: `stdout` as the command printed it, `expected.json` as the parser must read it.

A new behaviour is a new folder. The value of empty text is the fact's "unknown", so every fact has such a case or inherits it here.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.probe.fact import Fact
from firstlight.probe.facts import cuda, network, nvidia, peers, processes, readspeed, storage, system, tools, topology

HERE = Path(__file__).parent
FACTS: dict[str, Fact[Any]] = {
    fact.name.partition(":")[0]: fact
    for fact in (
        *system.SYSTEM_FACTS,
        *nvidia.NVIDIA_FACTS,
        *storage.STORAGE_FACTS,
        storage.space([]),
        *network.NETWORK_FACTS,
        tools.TOOLS_FACT,
        topology.TOPOLOGY,
        topology.P2P_ALLOWED,
        cuda.CUDA,
        processes.processes([]),
        readspeed.read_speed(""),
        peers.peer_copies(),
    )
}
CASES = sorted(p.parent.relative_to(HERE) for p in HERE.glob("*/*/stdout"))


def value(fact: Fact[Any], text: str) -> Any:
    return json.loads(msgspec.json.encode(fact.parse(text)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fixture(case: Path) -> None:
    fact = FACTS[case.parts[0]]
    text = (HERE / case / "stdout").read_text("utf-8")
    assert value(fact, text) == json.loads((HERE / case / "expected.json").read_text("utf-8"))


def test_every_fact_has_fixtures() -> None:
    assert {c.parts[0] for c in CASES} == set(FACTS)


@pytest.mark.parametrize("name", FACTS)
@given(text=st.text())
def test_no_text_breaks_a_parser(name: str, text: str) -> None:
    value(FACTS[name], text)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_cut_answer_breaks_no_parser(case: Path) -> None:
    text = (HERE / case / "stdout").read_text("utf-8")
    for end in range(0, len(text), max(1, len(text) // 60)):
        value(FACTS[case.parts[0]], text[:end])
