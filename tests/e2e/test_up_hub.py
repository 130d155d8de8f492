"""`up org/name` from a hub on loopback: headers first, then the download and the rehearsal side by side, then the launch."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, run_folder

sys.path.insert(0, str(Path(__file__).parents[1]))
from hub.models import COMMIT
from hub.server import Hub

REPO = "acme/tiny-llama"


@pytest.fixture
def hub(tmp_path: Path, llama_folder: Path) -> Iterator[Hub]:
    shutil.copytree(llama_folder, tmp_path / "hub" / REPO / COMMIT)
    with Hub(tmp_path / "hub") as running:
        yield running


def up(*more: str) -> tuple[str, ...]:
    return ("up", REPO, "--engine", "vllm", "--engine-python", str(FAKE_PYTHON), "--skip", "verify", "--skip", "bench", *more)


def stage_order(folder: Path) -> list[str]:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [e["stage"] for e in events if e["kind"] == "stage-finished"]


def test_a_model_on_a_hub_is_planned_first_and_rehearsed_while_it_downloads(firstlight: Firstlight, hub: Hub) -> None:
    served = firstlight(*up("--rehearse", "always"), env={"HF_ENDPOINT": hub.url})
    assert served.returncode == 0, served.stderr
    folder = run_folder(firstlight.runs()[0])
    order = stage_order(folder)
    assert order.index("plan") < order.index("fetch") < order.index("launch")
    assert json.loads((folder / "rehearsal.json").read_text())["kind"] == "RehearsalReport"
    assert (folder / "rehearsal" / "1" / "engine.log").exists()
    assert "tiny-llama" in (folder / "command.txt").read_text()
    assert json.loads((folder / "endpoint.json").read_text())["model"] == REPO


def test_nothing_is_downloaded_for_a_model_that_will_not_fit(firstlight: Firstlight, hub: Hub, own_home: Path) -> None:
    refused = firstlight(*up("--max-model-len", "4000000000", "--attempts", "1"), env={"HF_ENDPOINT": hub.url})
    assert refused.returncode in (3, 4), refused.stderr
    assert not list(own_home.rglob("*.safetensors"))


def test_a_refuted_plan_is_healed_before_the_weights_are_used(firstlight: Firstlight, hub: Hub) -> None:
    healed = firstlight(*up("--rehearse", "always"), env={"HF_ENDPOINT": hub.url, "FAKE_ENGINE_SCRIPT": "context-too-long"})
    assert healed.returncode == 0, healed.stderr
    folder = run_folder(firstlight.runs()[0])
    assert json.loads((folder / "plan.json").read_text())["best"]["max_model_len"] == 4096
    assert "one request of max_model_len" in json.loads((folder / "rehearsal.json").read_text())["refusal"]
    assert not (folder / "attempts" / "1" / "engine.log").exists()
