"""What is brought to another host: the run's documents as that host's own, firstlight itself, and nothing that is a secret or only here."""

import io
import json
import tarfile
from pathlib import Path

import pytest

import firstlight
from firstlight.app import carrying, gpu_room, services_there
from firstlight.app.carrying import Carried
from firstlight.core.errors import FirstlightError
from firstlight.core.machine import Accelerator, Machine
from firstlight.core.run import Run, RunState
from firstlight.core.schema import decode, encode

OURS = str(Path(firstlight.__file__).parent)
RUN = Run(
    id="x-1", name="x", model="m", state=RunState.SERVING, created=1.0, updated=2.0, folder="/here/runs/x-1", host="ssh://me@gpu1",
    host_folder="/there/runs/x-1",
)  # fmt: skip
THERE = Carried("/usr/bin/python3", "/there/carried/abc")


def theirs(document: object) -> dict[str, object]:
    data = json.dumps(document).encode() if isinstance(document, dict) else encode(document)  # type: ignore[type-var]
    found: dict[str, object] = json.loads(services_there._theirs(data, RUN, "/there/runs/x-1", "/there/key", THERE))
    return found


def test_a_run_s_record_becomes_the_host_s_own() -> None:
    found = decode(json.dumps(theirs(RUN)).encode(), Run)
    assert (found.host, found.host_folder, found.folder, found.id) == ("local", None, "/there/runs/x-1", "x-1")


def test_keys_and_runner_scripts_are_those_that_are_there() -> None:
    launch = {"argv": ["/opt/python", f"{OURS}/engines/llamacpp/inside/serve.py", "--x"], "secret_files": {"VLLM_API_KEY": "/here/key"}}
    assert theirs(launch) == {
        "argv": ["/opt/python", "/there/carried/abc/firstlight/engines/llamacpp/inside/serve.py", "--x"],
        "secret_files": {"VLLM_API_KEY": "/there/key"},
    }
    assert theirs({"host": "ssh://me@gpu1", "api_key_file": "/here/key", "n": 1}) == {"host": "local", "api_key_file": "/there/key", "n": 1}
    assert theirs({"api_key_file": None, "secret_files": {}}) == {"api_key_file": None, "secret_files": {}}


def test_the_same_files_are_the_same_bytes_and_nothing_leads_out() -> None:
    files = carrying._own_files()
    assert carrying._packed(files) == carrying._packed(files)
    with tarfile.open(fileobj=io.BytesIO(carrying._packed(files))) as archive:
        names = archive.getnames()
    assert {"__main__.py", "firstlight/app/main.py", "firstlight/catalog/findings.toml"} <= set(names)
    assert not [n for n in names if n.startswith("/") or ".." in n.split("/") or "__pycache__" in n]


def test_what_firstlight_requires_comes_along_but_the_hub_s_client() -> None:
    names = {d.name.lower() for d in carrying.distributions()}
    assert {"click", "rich", "msgspec", "pygments", "pyyaml"} <= names
    assert not names & {"huggingface_hub", "huggingface-hub", "pytest", "firstlight"}


GIB = 1 << 30


@pytest.mark.parametrize(
    ("now", "names", "lines"),
    [({"0": 300}, None, 0), ({"0": 900}, None, 1), ({"0": 900}, [1], 0), ({"0": 900}, ["GPU-a"], 1), (None, None, 0), ({}, None, 0)],
)
def test_memory_counts_as_taken_beyond_what_was_in_use_when_it_was_verified(
    monkeypatch: pytest.MonkeyPatch, now: dict[str, int] | None, names: list[int | str] | None, lines: int
) -> None:
    monkeypatch.setattr(gpu_room, "gpu_memory", lambda: now)
    gpu = Accelerator(index=0, name="x", uuid="GPU-a", driver_total_bytes=80 * GIB, free_bytes=80 * GIB - (100 << 20))
    machine = Machine(hostname="h", accelerators=[gpu])
    assert len(gpu_room.taken(machine, names)) == lines
    assert gpu_room.taken(None, names) == []
    if lines:
        with pytest.raises(FirstlightError) as held:
            gpu_room.require_free(machine, names, -1.0, lambda text: None)
        assert (held.value.code, held.value.exit_code) == ("gpu-memory-held", 4)
