"""The scripts that speak to CUDA's driver library, run for real against a stand-in library with two devices."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.core.machine import Link
from firstlight.probe.facts.cuda import CUDA, parse_cuda
from firstlight.probe.facts.peers import Peers, parse_peers, peer_copies
from firstlight.probe.facts.peers import tested as with_tests


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in library")
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(path), str(Path(__file__).with_name("fake_cuda.c"))], check=True)
    return path


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
