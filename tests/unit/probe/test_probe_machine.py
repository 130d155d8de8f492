"""Facts become a Machine: recorded texts of several machines, then this one."""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from recorded_host import recorded_machine

from firstlight.core.machine import GpuProcess, Machine
from firstlight.core.ports import Completed
from firstlight.core.schema import decode, encode
from firstlight.core.units import MIB
from firstlight.probe.fact import ask
from firstlight.probe.facts import processes
from firstlight.probe.facts.cuda import Cuda
from firstlight.probe.facts.nvidia import Bus, parse_smi
from firstlight.probe.facts.system import Memory
from firstlight.probe.gpus import accelerators
from firstlight.probe.local import LocalHost
from firstlight.probe.machine import probe_machine, prove_peers


def machine(variables: Mapping[str, str] | None = None, **cases: str) -> Machine:
    found = recorded_machine({k.replace("_", "-"): v for k, v in cases.items()}, variables)
    assert decode(encode(found), Machine) == found, "a machine file replays"
    return found


def test_eight_workstation_gpus_with_somebody_on_them() -> None:
    found = machine(
        nvidia_smi="8xrtx-pro-6000-held",
        nvidia_smi_query="8xrtx-pro-6000",
        cuda="8xrtx-pro-6000",
        pci_bus="8xrtx-pro-6000",
        nvidia_smi_topo="8xrtx-pro-6000-pcie",
        nvidia_smi_p2p="8xrtx-pro-6000-ok",
        gpu_processes="three-kinds",
    )
    first = found.accelerators[0]
    assert len(found.accelerators) == 8
    assert (first.sm, first.driver_total_bytes, first.cuda_total_bytes, first.cuda_total_rung) == (
        120,
        97887 * MIB,
        101973360640,
        "measured",
    )
    assert first.catalog_id
    assert first.catalog_id.startswith("rtx-pro-6000-blackwell")
    assert [g.numa_node for g in found.accelerators] == [0, 0, 0, 0, 1, 1, 1, 1]
    holder = first.processes[0]
    assert (holder.ours, holder.run, holder.user) == (True, "demo-20261130-070000-ab12", "llm")
    assert [p.container for p in found.accelerators[1].processes] == ["4f5e6d7c8b9a"]
    assert [p.unit for p in found.accelerators[2].processes] == ["vllm.service"]
    assert len(found.links) == 28
    pair = found.links[0]
    assert (pair.kind, pair.p2p, pair.p2p_allowed, pair.bandwidth_bytes_per_second) == ("pix", None, "OK", 3.938e9 * 16)
    narrow = next(link for link in found.links if (link.a, link.b) == (2, 3))
    assert narrow.bandwidth_bytes_per_second == 3.938e9 * 8, "the narrower card sets the pace"
    assert (found.driver_version, found.cuda_driver_version, found.findings) == ("575.57.08", "12.9", [])


def test_a_gpu_in_mig_mode_is_its_devices() -> None:
    found = machine(nvidia_smi="2xh100-one-mig", nvidia_smi_list="2xh100-one-mig")
    assert [(g.index, g.mig, g.mig_profile) for g in found.accelerators] == [(0, False, None), (1, True, "3g.40gb"), (2, True, "3g.40gb")]
    one, two = found.accelerators[1:]
    assert (one.uuid, one.cuda_total_bytes) == ("MIG-11111111-aaaa-5555-bbbb-0123456789ab", 40448 * MIB)
    assert [len(g.processes) for g in (one, two)] == [1, 0], "a process belongs to its own device"
    assert found.accelerators[0].sm == 90, "the catalog knows what an old driver does not say"


def test_no_two_entries_share_an_index_where_the_first_gpu_is_split() -> None:
    recorded = Path(__file__).parents[2] / "facts" / "nvidia-smi" / "2xh100-one-mig" / "stdout"
    smi = parse_smi(recorded.read_text())
    turned = replace(smi, gpus=smi.gpus[::-1])
    found = accelerators(turned, capability={}, listed={}, cuda=Cuda(), bus=Bus(), memory=Memory(), processes={})
    assert [(g.index, g.mig_profile) for g in found] == [(0, "unknown"), (2, "unknown"), (1, None)]


def test_two_real_h200_on_nvlink() -> None:
    found = machine(
        nvidia_smi="2xh200-nvlink", nvidia_smi_topo="2xh200-nvlink", nvidia_smi_p2p="2xh200-nvlink", nvidia_smi_list="2xh200-nvlink"
    )
    assert [(g.index, g.sm, g.catalog_id, g.pci_bus_id) for g in found.accelerators] == [
        (0, 90, "h200-141gb-sxm", "00000000:00:06.0"),
        (1, 90, "h200-141gb-sxm", "00000000:00:07.0"),
    ]
    assert all(g.driver_total_bytes == 143771 * MIB and g.processes == [] and g.mig is False for g in found.accelerators)
    # The catalog's figure for what CUDA will report; torch.cuda.mem_get_info said 150,109,880,320 on these very GPUs.
    assert all(abs((g.cuda_total_bytes or 0) - 150_109_880_320) < MIB for g in found.accelerators)
    (link,) = found.links
    assert (link.kind, link.p2p, link.p2p_allowed, link.bandwidth_bytes_per_second) == ("nvlink", None, "OK", 450e9)
    assert found.findings == []


class Answering:
    """A host that answers the copies and every all-reduce from canned texts, and keeps what was tried."""

    name, is_local = "answering", False

    def __init__(self, copies: str) -> None:
        self.copies, self.tried = copies, list[str]()

    def run(self, argv: Sequence[str], **_: Any) -> Completed:
        text = " ".join(argv)
        if "ncclAllReduce" in text:
            self.tried.append(re.search(r"unset [A-Z0-9_ ]+; (.*?)exec", text)[1].strip())  # type: ignore[index]
            out = '{"equal": true, "small_seconds": 2e-5, "large_bytes_per_second": 9e10}'
        else:
            out = self.copies if "cuMemcpyPeer" in text else ""
        return Completed(returncode=0, stdout=out.encode(), stderr=b"")


GOOD = '{"skipped": {}, "pairs": [{"a": 0, "b": 1, "access": true, "equal": true, "bytes_per_second": 2.9e11, "problem": null}]}'


def test_idle_gpus_are_proven_and_settings_are_tried_over_pcie_only() -> None:
    nvlink = machine(nvidia_smi="2xh200-nvlink", nvidia_smi_topo="2xh200-nvlink", nvidia_smi_p2p="2xh200-nvlink")
    host = Answering(GOOD)
    proven = prove_peers(host, nvlink, python=None)  # type: ignore[arg-type]
    assert (proven.links[0].p2p, proven.links[0].bandwidth_bytes_per_second) == (True, 2.9e11)
    assert host.tried == ["", "NCCL_P2P_DISABLE=1"]
    assert [c.equal for c in proven.collectives] == [True, True]
    assert host.tried[0] == "", "NCCL's own choice is measured first"
    pcie = replace(nvlink, links=[replace(nvlink.links[0], kind="sys")])
    host = Answering(GOOD)
    assert len(prove_peers(host, pcie, python=None).collectives) == len(host.tried) == 7  # type: ignore[arg-type]
    assert (host.tried[0], host.tried[-1]) == ("", ""), "and again at the end"


def test_copies_that_lose_data_are_enough_and_gpus_in_use_are_left_alone() -> None:
    nvlink = machine(nvidia_smi="2xh200-nvlink", nvidia_smi_topo="2xh200-nvlink")
    host = Answering(GOOD.replace('"equal": true', '"equal": false'))
    assert prove_peers(host, nvlink, python=None).links[0].p2p is False  # type: ignore[arg-type]
    assert host.tried == [], "no all-reduce over a path that loses data"
    held = machine(nvidia_smi="8xrtx-pro-6000-held", nvidia_smi_topo="8xrtx-pro-6000-pcie", gpu_processes="three-kinds")
    busy = replace(held, accelerators=[replace(g, processes=g.processes or [GpuProcess(pid=1)]) for g in held.accelerators])
    assert prove_peers(host, busy, python=None) == busy  # type: ignore[arg-type]
    assert host.tried == []


def test_unified_memory_is_the_hosts() -> None:
    found = machine(nvidia_smi="gb10", nvidia_smi_query="gb10", cuda="gb10", meminfo="spark")
    gpu = found.accelerators[0]
    assert (gpu.unified_memory, gpu.driver_total_bytes, gpu.cuda_total_bytes, gpu.sm) == (True, None, 128526000128, 121)
    assert gpu.free_bytes == found.memory_available_bytes == 118213404 * 1024
    without_python = machine(nvidia_smi="gb10", meminfo="spark")
    assert without_python.accelerators[0].sm == 121
    assert without_python.accelerators[0].cuda_total_rung == "computed"


def test_an_old_driver_and_an_unknown_card() -> None:
    found = machine(nvidia_smi="2xrtx-4090-driver-525", nvidia_smi_query="old-driver", nvidia_smi_p2p="2xrtx-4090-refused")
    assert [g.sm for g in found.accelerators] == [89, 89]
    assert [g.pcie_width for g in found.accelerators] == [16, 4]
    assert found.links == [], "no topology was read, so no link is claimed"


@pytest.mark.parametrize(
    ("cases", "code"),
    [
        ({"nvidia_smi": "no-driver", "pci_bus": "gpu-without-driver"}, "driver-not-loaded"),
        ({"pci_bus": "gpu-without-driver"}, "driver-not-loaded"),
        ({"nvidia_smi": "version-mismatch", "pci_bus": "8xrtx-pro-6000"}, "driver-library-mismatch"),
        ({"nvidia_smi": "no-devices", "pci_bus": "driver-without-gpu"}, "driver-without-gpu"),
        ({"nvidia_smi": "silent", "pci_bus": "8xrtx-pro-6000"}, "driver-does-not-answer"),
        ({"pci_bus": "8xrtx-pro-6000"}, "driver-does-not-answer"),
        ({"nvidia_smi": "1xh200", "pci_bus": "8xrtx-pro-6000"}, "gpu-not-listed"),
        ({"nvidia_smi": "needs-reset"}, "gpu-needs-reset"),
        ({"nvidia_smi": "absent", "pci_bus": "no-gpu"}, None),
        ({"nvidia_smi": "no-driver", "pci_bus": "no-gpu"}, None),
        ({}, None),
    ],
)
def test_what_is_wrong_between_bus_and_driver(cases: dict[str, str], code: str | None) -> None:
    found = machine(**cases)
    assert [f.code for f in found.findings] == ([code] if code else [])
    assert all(f.evidence and f.hint for f in found.findings)


def test_secrets_of_the_environment_are_not_kept() -> None:
    variables = {
        "HF_TOKEN": "hf_canary",
        "VLLM_API_KEY": "canary",
        "https_proxy": "http://me:canary@proxy:3128",
        "NCCL_PROTO": "LL",
        "HOME": "/home/me",
    }
    found = machine(variables)
    assert found.environment == {
        "HF_TOKEN": "(set)",
        "NCCL_PROTO": "LL",
        "VLLM_API_KEY": "(set)",
        "https_proxy": "http://proxy:3128",
    }
    assert b"canary" not in encode(found)


def test_this_machine(tmp_path: Path) -> None:
    raw: dict[str, str] = {}
    (tmp_path / "big.bin").write_bytes(bytes(80 << 20))
    found = probe_machine(LocalHost(), paths=[str(tmp_path), str(tmp_path / "not" / "yet")], raw=raw, measure_reads=True)
    assert found.memory_total_bytes
    assert found.cpu_count
    assert found.limits["nofile"]
    assert [s.path for s in found.storage] == [str(tmp_path), str(tmp_path / "not" / "yet")]
    assert found.storage[0].total_bytes == found.storage[1].total_bytes
    assert set(raw) >= {"uname", "cpu", "meminfo", "cgroup", "limits", "mounts", "space", "ports", "tools", "nvidia-smi", "pci-bus"}


def test_keys_on_other_peoples_command_lines_are_hidden() -> None:
    """On the real /proc: the raw text that is kept has no key either."""
    secret = "canary-7f3a"
    words = ["--api-key", secret, f"--hf-token={secret}", "--port", "8000", "--tokenizer", "org/name", f"--master_key={secret}"]
    process = subprocess.Popen([sys.executable, "-c", "input()", *words], stdin=subprocess.PIPE)
    try:
        fact = processes.processes([process.pid])
        text = ask(LocalHost(), fact)
        assert secret not in text
        command = fact.parse(text)[process.pid].command or ""
        assert "--api-key (hidden) --hf-token=(hidden) --port 8000 --tokenizer org/name" in command
    finally:
        process.kill()
        process.communicate()
