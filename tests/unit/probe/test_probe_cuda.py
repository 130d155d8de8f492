"""The scripts that speak to CUDA's driver library, run for real against a stand-in library with two devices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.core.machine import Collective, Link
from firstlight.probe.facts.allreduce import all_reduce, parse_all_reduce
from firstlight.probe.facts.cuda import CUDA, parse_cuda
from firstlight.probe.facts.peers import Peers, parse_peers, peer_copies
from firstlight.probe.facts.peers import tested as with_tests


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in library")
    folder = tmp_path_factory.mktemp("cuda")
    for name, source in (("libcuda.so.1", "fake_cuda.c"), ("libnccl.so.2", "fake_nccl.c")):
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-w", "-o", str(folder / name), str(Path(__file__).with_name(source))], check=True
        )
    return folder / "libcuda.so.1"


def answer(argv: tuple[str, ...], library: Path, mode: str = "") -> str:
    environment = os.environ | {"LD_LIBRARY_PATH": str(library.parent), "FAKE_CUDA": mode, "CUDA_VISIBLE_DEVICES": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(list(argv), capture_output=True, text=True, env=environment, check=False, timeout=60).stdout


def test_totals_without_a_context(library: Path) -> None:
    found = parse_cuda(answer(CUDA.argv, library))
    assert (found.driver, found.problem) == ("12.8", None)
    assert [(d.pci_bus_id, d.total_bytes, d.sm, d.integrated) for d in found.devices] == [
        ("0000:01:00.0", 101973360640, 120, False),
        ("0000:02:00.0", 101973360640, 120, False),
    ]
    assert parse_cuda(answer(CUDA.argv, library, "no-device")).problem == "cuInit answered 100"


def peers(library: Path, mode: str) -> Peers:
    return parse_peers(answer(peer_copies().argv, library, mode))


def test_copies_that_arrive(library: Path) -> None:
    pair = peers(library, "").pairs[0]
    assert (pair.access, pair.equal, pair.problem) == (True, True, None)
    assert pair.bytes_per_second
    link = with_tests([Link(a=0, b=1, kind="phb")], peers(library, ""))[0]
    assert link.p2p is True
    assert link.bandwidth_bytes_per_second


def test_copies_that_lose_data(library: Path) -> None:
    found = peers(library, "broken")
    assert [p.equal for p in found.pairs] == [False]
    assert with_tests([Link(a=0, b=1, kind="phb", bandwidth_bytes_per_second=1.0)], found)[0] == Link(
        a=0, b=1, kind="phb", p2p=False, bandwidth_bytes_per_second=1.0
    )


def test_no_access_and_gpus_in_use_prove_nothing(library: Path) -> None:
    assert with_tests([Link(a=0, b=1, kind="phb")], peers(library, "no-access"))[0] == Link(a=0, b=1, kind="phb", p2p_allowed="NS")
    busy = peers(library, "busy")
    assert (busy.pairs, busy.skipped) == ([], {"0": "only 512 MiB free", "1": "only 512 MiB free"})
    assert [(p.equal, p.problem) for p in peers(library, "refused").pairs] == [(None, "cuCtxEnablePeerAccess answered 217")]
    assert peers(library, "no-device").problem == "cuInit answered 100"


def reduced(library: Path, settings: dict[str, str], mode: str = "", monkeypatch: pytest.MonkeyPatch | None = None) -> Collective:
    fact = all_reduce(settings, [0, 1], str(library.with_name("libnccl.so.2")))
    if monkeypatch:
        monkeypatch.setenv("FAKE_NCCL", mode)
    return fact.parse(answer(fact.argv, library))


def test_all_reduce_is_checked_and_timed(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, quick = reduced(library, {}), reduced(library, {"NCCL_PROTO": "LL"})
    assert (usual.equal, usual.settings, usual.problem) == (True, {}, None)
    assert usual.large_bytes_per_second
    assert (quick.small_seconds or 1) < (usual.small_seconds or 0)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    wrong = reduced(library, {}, "wrong", monkeypatch)
    assert wrong.equal is False, "a setting of the caller's own does not leak into the measurement"
    assert reduced(library, {"NCCL_P2P_DISABLE": "1"}, "wrong", monkeypatch).equal is True


def test_no_nccl_is_told(library: Path) -> None:
    fact = all_reduce({}, [0, 1], "/nonexistent/libnccl.so.2")
    assert "/nonexistent/libnccl.so.2" in (fact.parse(answer(fact.argv, library)).problem or "")
    assert parse_all_reduce("", {}).problem == "no answer"
    assert parse_all_reduce("firstlight: no answer within 45 s\n", {}).problem == "firstlight: no answer within 45 s"
