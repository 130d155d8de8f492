"""Rendered files: exact where it matters, and taken by the tools that will read them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from firstlight.core.errors import UsageError
from firstlight.core.run import Endpoint, LaunchSpec, Overlay
from firstlight.deploy.container import container, engine_argv, image_of, parallel_ranks
from firstlight.deploy.deployment import Deployment, model_places
from firstlight.deploy.renderers import render, renderers
from firstlight.deploy.unit import UnitOptions, quote, render_unit, start_limit_seconds, start_timeout_seconds

MODEL = "/models/Ünïcode $HOME 50%, model"
KEY = "/home/me/.config/firstlight/keys/it's mine.key"


def vllm(**changes: Any) -> Deployment:
    argv = ["/env/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", MODEL, "--served-model-name", "org/Model", "--host", "127.0.0.1"]
    argv += ["--port", "8003", "--tensor-parallel-size", "4", "--max-model-len", "32768"]
    launch = LaunchSpec(
        engine="vllm",
        argv=argv,
        env={"CUDA_VISIBLE_DEVICES": "0,2,4,6", "VLLM_CACHE_ROOT": "/cache/vllm", "NCCL_P2P_LEVEL": "SYS", "ODD": "a $b %c \"d\" 'e'"},
        secret_files={"VLLM_API_KEY": KEY},
        port=8003,
        served_model_name="org/Model",
        stop_grace_seconds=20.0,
        model_path=MODEL,
    )
    deployment = Deployment(
        name="model",
        launch=launch,
        endpoint=Endpoint(base_url="http://127.0.0.1:8003/v1", model="org/Model", engine="vllm", api_key_file=KEY),
        version="0.32.0+cu130",
        gpus=["0", "2", "4", "6"],
        gpu_count=8,
        ranks=4,
        ready_seconds=600.0,
        known_answer=True,
        uid=1000,
        gid=1001,
    )
    return msgspec.structs.replace(deployment, **changes)


def llamacpp() -> Deployment:
    argv = [
        "/env/bin/python",
        "/lib/runner.py",
        "--model",
        "/m/x.gguf",
        "--alias",
        "x",
        "--host",
        "127.0.0.1",
        "--port",
        "8000",
        "--threads",
        "1",
    ]
    launch = LaunchSpec(engine="llamacpp", argv=argv, port=8000, served_model_name="x", model_path="/m/x.gguf")
    return Deployment(name="x", launch=launch, endpoint=Endpoint(base_url="http://127.0.0.1:8000/v1", model="x", engine="llamacpp"))


def options(**changes: Any) -> UnitOptions:
    given = {
        "scope": "system",
        "argv": ["/opt/fire light/python", "-m", "firstlight", "service", "run", "/etc/x"],
        "environment": {},
        **changes,
    }
    return UnitOptions(**given)


def service_of(deployment: Deployment) -> dict[str, Any]:
    document = yaml.safe_load(render("compose", deployment)["compose.yaml"])
    (service,) = document["services"].values()
    assert isinstance(service, dict)
    return service


# the container


def test_images_are_the_official_ones_of_the_verified_release() -> None:
    assert image_of(vllm()) == "vllm/vllm-openai:v0.32.0"
    assert image_of(llamacpp()) == "ghcr.io/ggml-org/llama.cpp:server"
    with pytest.raises(UsageError, match="no-official-image"):
        image_of(vllm(version=None))


def test_the_engine_gets_the_verified_flags_and_listens_inside() -> None:
    argv = engine_argv(vllm())
    assert argv[:3] == ["vllm", "serve", MODEL]
    assert argv[argv.index("--host") + 1] == "0.0.0.0"
    assert argv[argv.index("--tensor-parallel-size") + 1] == "4"
    assert engine_argv(llamacpp())[:3] == ["/app/llama-server", "--model", "/m/x.gguf"]


def test_only_loopback_is_published_unless_the_plan_binds_wider() -> None:
    assert service_of(vllm())["ports"] == ["127.0.0.1:8003:8003"]
    wide = msgspec.structs.replace(vllm().launch, host="0.0.0.0")
    assert service_of(vllm(launch=wide))["ports"] == ["0.0.0.0:8003:8003"]


def test_no_container_is_privileged_or_root() -> None:
    service = service_of(vllm(uid=0, gid=0))
    assert service["user"] == "10001:10001"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert "privileged" not in service
    assert service_of(vllm())["user"] == "1000:1001"


def test_links_of_overlays_and_hub_caches_lead_somewhere_inside() -> None:
    snapshot = "/hub/models--org--Model/snapshots/abc"
    overlay = Overlay(path="/cache/overlays/model-1", checkpoint=snapshot, digest="d", because="b", files=[])
    assert model_places(vllm(overlay=overlay)) == ["/cache/overlays/model-1", "/hub/models--org--Model"]
    volumes = service_of(vllm(overlay=overlay))["volumes"]
    assert {(v["source"], v["target"], v["read_only"]) for v in volumes} == {
        ("/cache/overlays/model-1", "/cache/overlays/model-1", True),
        ("/hub/models--org--Model", "/hub/models--org--Model", True),
        ("/cache/vllm", "/cache/vllm", False),
    }


def test_gpus_by_index_and_shared_memory_for_ranks() -> None:
    service = service_of(vllm())
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["0", "2", "4", "6"], "capabilities": ["gpu"]}
    assert int(service["shm_size"]) == 16 << 30
    assert "CUDA_VISIBLE_DEVICES" not in service["environment"]
    assert "deploy" not in service_of(llamacpp())


def test_the_health_check_asks_for_an_answer_and_never_shows_the_key() -> None:
    health = container(vllm()).health
    assert "capital of France" in health
    assert health.endswith("grep -qi paris")
    assert "Bearer %s" in health
    assert "-K -" in health
    done = subprocess.run(["sh", "-n", "-c", health], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(("reply", "healthy"), [("It is Paris.", True), ("", False), ("\\u0000!!!", False)])
def test_a_health_check_without_a_known_answer_wants_words(reply: str, healthy: bool, tmp_path: Path) -> None:
    curl = tmp_path / "curl"
    curl.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps({'choices': [{'message': {'content': reply}}]})}\nE\n")
    curl.chmod(0o755)
    health = container(vllm(known_answer=False)).health.replace("/run/secrets/api-key", "/dev/null")
    done = subprocess.run(["sh", "-c", health], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert (done.returncode == 0) is healthy


def test_several_nodes_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="several-nodes"):
        render("compose", vllm(nodes=2))
    with pytest.raises(UsageError, match="unknown-renderer"):
        render("helm", vllm())
    assert {"compose", "docker", "quadlet"} <= set(renderers())


def test_compose_is_taken_by_its_own_tool_and_means_the_same(tmp_path: Path) -> None:
    tool = shutil.which("docker-compose")
    if tool is None:
        pytest.skip("docker-compose is not here (`apt-get install docker-compose`)")
    (tmp_path / "compose.yaml").write_text(render("compose", vllm())["compose.yaml"])
    (tmp_path / "docker-compose.yml").symlink_to("compose.yaml")
    done = subprocess.run([tool, "config"], cwd=tmp_path, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 0, done.stderr
    (service,) = yaml.safe_load(done.stdout)["services"].values()
    assert service["environment"]["ODD"].replace("$$", "$") == "a $b %c \"d\" 'e'"
    assert MODEL in [v["source"].replace("$$", "$") for v in service["volumes"]]


def test_docker_run_is_one_command_that_says_what_compose_says(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(render("docker", vllm())["docker-run.sh"])
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nfor w in "$@"; do printf "%s\\0" "$w"; done\n')
    docker.chmod(0o755)
    out = subprocess.run(["sh", str(script)], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True).stdout
    words = out.split("\0")[:-1]
    assert words[0] == "run"
    assert words[words.index("--gpus") + 1] == '"device=0,2,4,6"'
    assert words[-1] == container(vllm()).script
    assert words[-3] == "vllm/vllm-openai:v0.32.0"
    assert f'type=bind,"source={MODEL}","target={MODEL}",readonly' in words
    assert "ODD=a $b %c \"d\" 'e'" in words


def test_quadlet_names_the_registry_and_escapes_percent() -> None:
    text = render("quadlet", vllm())["firstlight-model.container"]
    assert "Image=docker.io/vllm/vllm-openai:v0.32.0" in text
    assert "Image=ghcr.io/ggml-org/llama.cpp:server" in render("quadlet", llamacpp())["firstlight-x.container"]
    assert "50%%, model" in text
    assert "AddDevice=nvidia.com/gpu=6" in text


def test_parallel_sizes_are_multiplied() -> None:
    assert parallel_ranks(["--tensor-parallel-size", "4", "--pipeline-parallel-size=2"]) == 8
    assert parallel_ranks([]) == 1


# the unit


def lines(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_a_unit_of_a_slow_start_is_given_its_time() -> None:
    assert start_timeout_seconds(vllm()) == 1800
    assert start_limit_seconds(vllm()) == 5 * (2 * 600 + 120), "five such starts fit into the interval"
    assert start_limit_seconds(vllm(ready_seconds=None)) == 1200


def test_the_manager_backs_off_where_it_can() -> None:
    assert lines(render_unit(vllm(), options(version=255)), "RestartSteps") == ["5"]
    assert lines(render_unit(vllm(), options(version=252)), "RestartSteps") == []


def test_a_key_is_a_credential_and_the_checkpoint_is_read_only() -> None:
    text = render_unit(vllm(), options())
    assert lines(text, "LoadCredential") == [f"api-key:{KEY}"]
    assert lines(text, "ReadOnlyPaths") == ['"-/models/Ünïcode $HOME 50%%, model"']
    assert lines(text, "KillMode") == ["mixed"]
    assert lines(text, "RestartPreventExitStatus") == ["2 3 4 6 8"]


def test_a_user_s_unit_asks_for_nothing_that_a_user_s_manager_cannot_give() -> None:
    text = render_unit(vllm(), options(scope="user"))
    assert not [k for k in ("User", "CapabilityBoundingSet", "ProtectSystem", "ReadOnlyPaths") if lines(text, k)]
    assert lines(text, "WantedBy") == ["default.target"]


@pytest.mark.parametrize("word", ["plain", "a b", 'say "x"', "back\\slash", "50%", "$HOME", "semi;colon", "it's"])
def test_words_come_out_of_systemd_as_they_went_in(word: str) -> None:
    """As systemd.syntax(7) reads them back."""
    text = quote(word)
    if text.startswith('"'):
        text = text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    assert text.replace("%%", "%").replace("$$", "$") == word


@pytest.mark.parametrize("scope", ["system", "user"])
def test_systemd_itself_takes_the_unit(scope: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here (`apt-get install systemd`)")
    unit = tmp_path / "firstlight-model.service"
    environment = {"ODD": "a $b %c \"d\" 'e'", "PATH": "/usr/bin"}
    unit.write_text(render_unit(vllm(), options(scope=scope, argv=["/bin/true", MODEL], environment=environment, user=None)))
    done = subprocess.run(
        ["systemd-analyze", f"--{scope}", "--man=no", "verify", str(unit)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "firstlight-model.service" in line] == []
