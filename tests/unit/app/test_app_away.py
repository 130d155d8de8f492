"""A host that cannot be reached says nothing of its run; who holds a GPU is named with the unit that would start it again."""

import os
import shutil
import socket
from pathlib import Path

import msgspec
import pytest

from firstlight.app import holders
from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.ending import end
from firstlight.app.reconcile import reconcile
from firstlight.app.session import Session, UpOptions
from firstlight.app.store import RunFolder, RunStore
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import ConsentError, FirstlightError, HostError
from firstlight.core.intent import Intent
from firstlight.core.machine import Accelerator, GpuProcess, Machine
from firstlight.core.run import RunState
from firstlight.probe.local import LocalHost


@pytest.fixture
def away() -> RunFolder:
    """A serving run on a host whose port nobody listens at."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh client on this machine (`apt-get install openssh-client`)")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = RunStore().create(name="away", model="m", host=f"ssh://127.0.0.1:{port}")
    folder.update(state=RunState.SERVING, host_folder="/there/runs/away")
    return folder


def test_a_run_is_not_failed_because_its_host_is_away(away: RunFolder) -> None:
    run = reconcile(away)
    assert run.state is RunState.SERVING
    assert "127.0.0.1" in (run.reason or "")
    assert away.run.state is RunState.SERVING
    assert away.run.reason is None, "nothing is written down that is not known"


def test_a_run_is_not_over_because_its_host_is_away(away: RunFolder) -> None:
    with pytest.raises(HostError) as error:
        end(away)
    assert error.value.code == "host-unreachable"
    assert away.run.state is RunState.SERVING


def test_who_holds_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    process = GpuProcess(pid=os.getpid(), memory_bytes=1 << 30)
    gpus = [Accelerator(index=0, name="x", processes=[]), Accelerator(index=1, name="x", processes=[process])]
    monkeypatch.setattr("firstlight.probe.machine.probe_machine", lambda host: Machine(hostname="h", accelerators=gpus))
    (holder,) = holders.of_gpus(LocalHost(), None)
    assert (holder.what, holder.pid) == ("GPU 1", os.getpid())
    assert "py" in holder.command
    assert holders.of_gpus(LocalHost(), [0]) == []
    refused = holders.held(msgspec.structs.replace(holder, unit="old-vllm.service", unit_scope="system"))
    assert refused.hint == "systemctl disable --now old-vllm.service, if it may go"
    assert refused.exit_code == 4
    assert isinstance(refused, FirstlightError)


def test_a_model_that_a_closed_folder_hides_there_is_only_here(tmp_path: Path) -> None:
    """A path that this machine has, and that the login there may not look at, is not there."""
    from firstlight.app.elsewhere import only_here

    class Closed(LocalHost):
        is_local = False  # type: ignore[assignment]

        def stat(self, path: str) -> None:  # type: ignore[override]
            raise HostError("permission-denied", "no")

    (tmp_path / "m.gguf").write_bytes(b"x")
    assert only_here(str(tmp_path / "m.gguf"), Closed()) == str(tmp_path / "m.gguf")
    assert only_here("org/name", Closed()) is None
    assert only_here(str(tmp_path / "m.gguf"), LocalHost()) is None


def test_what_fetch_keeps_beside_a_model_is_not_part_of_it(tmp_path: Path) -> None:
    """Neither an earlier revision's shards nor the record of the last look travel; that record's time gives no other address."""
    from firstlight.app.copying import plan_copy

    class There(LocalHost):
        name, is_local = "ssh://spark", False  # type: ignore[assignment]

    (tmp_path / "m" / ".firstlight" / "earlier").mkdir(parents=True)
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / ".firstlight" / "earlier" / "model.safetensors").write_bytes(bytes(100))
    (tmp_path / "m" / ".firstlight" / "manifest.json").write_text("1")
    first = plan_copy(str(tmp_path / "m"), There())
    (tmp_path / "m" / ".firstlight" / "manifest.json").write_text("2")
    assert (first.files, plan_copy(str(tmp_path / "m"), There())) == ([("config.json", 2)], first)


async def test_a_large_model_is_copied_after_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from firstlight.app.copying import Copy
    from firstlight.app.stages import start

    class There(LocalHost):
        name, is_local = "ssh://spark", False  # type: ignore[assignment]

    (tmp_path / "m.gguf").write_bytes(b"x")
    intent = Intent(model=str(tmp_path / "m.gguf"))
    session = Session(
        intent=intent,
        options=UpOptions(),
        host=There(),
        adapters=[],
        store=RunStore(),
        consent=Consent(),
        emitter=Emitter(None, []),
        name="m",
    )
    session.checkpoint = Checkpoint(ref=intent.model, format="gguf")
    monkeypatch.setattr(start, "only_here", lambda model, host: model)
    monkeypatch.setattr(start, "plan_copy", lambda here, host: Copy("/", [("m.gguf", 3 << 30)], "/there", "/there/m.gguf"))
    with pytest.raises(ConsentError) as refused:
        await start.fetch(session)
    assert "--allow copy-model" in str(refused.value.hint)
    assert "3.0 GiB" in refused.value.message
    assert "to /there on ssh://spark" in refused.value.evidence
