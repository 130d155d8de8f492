"""Bad input through the front door: a code, an exit, no traceback, nothing lost."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest
from e2e_runner import FAKE_PYTHON, Firstlight, hashes


def up(folder: Path, *more: str) -> tuple[str, ...]:
    return (
        "up",
        str(folder),
        "--engine",
        "vllm",
        "--engine-python",
        str(FAKE_PYTHON),
        "--name",
        "bad",
        "--skip",
        "verify",
        "--skip",
        "bench",
        *more,
    )


def test_no_engine_says_how_to_install_one(firstlight: Firstlight, llama_folder: Path) -> None:
    refused = firstlight("up", str(llama_folder), env={"PATH": "/usr/bin:/bin", "FIRSTLIGHT_ENGINE_PYTHON": ""})
    assert refused.returncode == 4
    assert "engine-missing" in refused.stderr
    assert "firstlight engines install vllm" in refused.stderr


def test_an_engine_python_that_does_not_start_is_named(firstlight: Firstlight, llama_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    refused = firstlight("up", str(llama_folder), "--engine", "vllm", "--engine-python", str(broken))
    assert refused.returncode == 4
    assert "engine-python-does-not-start" in refused.stderr
    assert str(broken) in refused.stderr


def test_an_unknown_engine_lists_the_known(firstlight: Firstlight, llama_folder: Path) -> None:
    refused = firstlight("up", str(llama_folder), "--engine", "tgi")
    assert refused.returncode == 2
    assert "llamacpp" in refused.stderr


def test_a_port_in_use_is_found_before_the_start_and_its_holder_named(firstlight: Firstlight, llama_folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = firstlight(*up(llama_folder, "--port", port))
    assert refused.returncode in (4, 5)
    assert "port-in-use" in refused.stderr
    assert port in refused.stderr


def test_a_config_without_weights_is_refused_by_up_and_answered_by_plan(firstlight: Firstlight, llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").unlink()
    refused = firstlight(*up(llama_folder))
    assert refused.returncode == 4
    assert "weights-absent" in refused.stderr
    assert firstlight("plan", str(llama_folder), "--gpu", "1xrtx-4090", "--engine", "vllm@0.32.0").returncode == 0
    assert firstlight("inspect", str(llama_folder)).returncode == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"architectures": 7}', '{"num_hidden_layers": "many"}'])
def test_a_config_that_is_no_config_is_an_error_with_a_code(firstlight: Firstlight, llama_folder: Path, text: str) -> None:
    (llama_folder / "config.json").write_text(text)
    refused = firstlight(*up(llama_folder))
    assert refused.returncode in (2, 4)
    assert "config.json" in refused.stderr


def test_a_folder_without_config_is_an_error(firstlight: Firstlight, llama_folder: Path) -> None:
    (llama_folder / "config.json").unlink()
    refused = firstlight(*up(llama_folder))
    assert refused.returncode in (2, 4)
    assert "config" in refused.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_state_folder_that_cannot_be_written(firstlight: Firstlight, llama_folder: Path, own_home: Path) -> None:
    (own_home / "state").mkdir(mode=0o500)
    refused = firstlight(*up(llama_folder))
    assert "run-folder-unwritable" in refused.stderr


def test_a_read_only_checkpoint_is_served_and_unchanged(firstlight: Firstlight, llama_folder: Path) -> None:
    before = hashes(llama_folder)
    for path in [*llama_folder.iterdir(), llama_folder]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        served = firstlight(*up(llama_folder))
        assert served.returncode == 0, served.stderr
        assert hashes(llama_folder) == before
    finally:
        llama_folder.chmod(0o755)


def test_json_errors_are_documents(firstlight: Firstlight, tmp_path: Path) -> None:
    refused = firstlight("up", str(tmp_path / "nowhere"), "-o", "json")
    document = json.loads(refused.stdout)
    assert (document["kind"], document["schema"], document["exit_code"]) == ("Error", "firstlight/1", refused.returncode)
    assert document["code"] == "model-not-found"


def test_exposing_without_a_key_is_refused(firstlight: Firstlight, llama_folder: Path) -> None:
    refused = firstlight(*up(llama_folder, "--bind", "0.0.0.0"))
    assert refused.returncode == 2
    assert "exposed-without-key" in refused.stderr
