"""A user's own command is found in whatever it is wrapped."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.app.preflighting import read_command
from firstlight.core.errors import InputError
from firstlight.preflight.command import EngineCommand, read_compose, read_shell, read_unit, read_words


def shell(text: str) -> EngineCommand:
    return read_words(shlex.split(text))


@pytest.mark.parametrize(
    ("text", "model", "args", "program"),
    [
        ("vllm serve org/name -tp 8", "org/name", ["-tp", "8"], "vllm"),
        ("/opt/v/bin/vllm serve --model org/name --port 1", "org/name", ["--port", "1"], "/opt/v/bin/vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model=/m/x --port 1", "/m/x", ["--port", "1"], "python3"),
        ("/v/bin/python -m vllm.entrypoints.cli.main serve '/m/a b' --port 1", "/m/a b", ["--port", "1"], "/v/bin/python"),
        ("vllm serve -tp 8 --enforce-eager org/name", "org/name", ["-tp", "8", "--enforce-eager"], "vllm"),
        ("vllm serve -tp 8 org/name", "org/name", ["-tp", "8"], "vllm"),
        ("vllm serve --port=1 org/name", "org/name", ["--port=1"], "vllm"),
        ("numactl --cpunodebind=0 uv run vllm serve m", "m", [], "vllm"),
        ("nohup env A=1 vllm serve m", "m", [], "vllm"),
        ("llama-server -m x.gguf -ngl 99", "x.gguf", ["-ngl", "99"], "llama-server"),
        ("/usr/bin/llama-server -hf org/name:Q4_K_M --port 2", "org/name:Q4_K_M", ["--port", "2"], "/usr/bin/llama-server"),
    ],
)
def test_forms(text: str, model: str, args: list[str], program: str) -> None:
    found = shell(text)
    assert (found.model, found.args, found.program) == (model, args, program)


def test_variables_before_the_program_and_of_a_container() -> None:
    assert shell("NCCL_PROTO=LL A='x y' vllm serve m").env == {"NCCL_PROTO": "LL", "A": "x y"}
    found = shell("docker run -e A=1 --env B=2 --env=C=3 --env HF_TOKEN vllm/vllm-openai:v0.16.0 --model m")
    assert found.env == {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:v0.16.0", "0.16.0"),
        ("docker.io/vllm/vllm-openai:v0.25.1-cu129", "0.25.1"),
        ("registry.local:5000/vllm/vllm-openai:0.24.0", "0.24.0"),
        ("vllm/vllm-openai:latest", None),
        ("vllm/vllm-openai", None),
        ("vllm/vllm-openai:v0.20.0rc1", "0.20.0rc1"),
    ],
)
def test_the_images_tag_says_the_release(image: str, version: str | None) -> None:
    assert shell(f"docker run --gpus all {image} --model m").version == version


def test_a_shell_in_a_shell_and_joined_lines() -> None:
    assert read_shell("bash -lc 'vllm serve m -tp 2'").args == ["-tp", "2"]
    assert read_shell("vllm serve m \\\n  -tp 2 \\\n  --port 1  # mine").args == ["-tp", "2", "--port", "1"]


UNIT = """[Unit]
Description=vLLM
[Service]
Environment=NCCL_PROTO=LL "B=x y"
Environment=CUDA_VISIBLE_DEVICES=0,1
ExecStartPre=/bin/true
ExecStart=/opt/v/bin/vllm serve /models/Kimi \\
    --tensor-parallel-size 2 --port 8000
"""


def test_a_unit() -> None:
    found = read_unit(UNIT)
    assert (found.model, found.args) == ("/models/Kimi", ["--tensor-parallel-size", "2", "--port", "8000"])
    assert found.env == {"NCCL_PROTO": "LL", "B": "x y", "CUDA_VISIBLE_DEVICES": "0,1"}


def test_a_unit_whose_environment_is_not_closed() -> None:
    with pytest.raises(InputError, match="command-unreadable"):
        read_unit('[Service]\nEnvironment="A=x\nExecStart=vllm serve m\n')


def test_a_file_needs_no_option(tmp_path: Path) -> None:
    (tmp_path / "vllm.service").write_text(UNIT)
    assert read_command([str(tmp_path / "vllm.service")], None).model == "/models/Kimi"


COMPOSE = """
services:
  proxy: {image: "nginx:1"}
  llm:
    image: vllm/vllm-openai:v0.24.0
    command: ["--model", "/models/x y", "-tp", "2"]
    environment: [HF_HOME=/cache, "NCCL_P2P_DISABLE=1"]
"""


def test_a_compose_file(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    found = read_command([], str(tmp_path / "compose.yaml"))
    assert (found.model, found.version, found.args) == ("/models/x y", "0.24.0", ["-tp", "2"])
    assert found.env == {"HF_HOME": "/cache", "NCCL_P2P_DISABLE": "1"}
    assert found.origin.startswith("service llm of the compose file")


def test_compose_with_words_and_a_map() -> None:
    service = {"image": "vllm/vllm-openai:v0.24.0", "entrypoint": "vllm", "command": "serve m --port 1", "environment": {"A": 1, "B": None}}
    found = read_compose({"services": {"x": service}})
    assert (found.model, found.args, found.env) == ("m", ["--port", "1"], {"A": "1"})


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["true"], "no-engine-command"),
        ([], "no-engine-command"),
        (["vllm", "bench", "serve"], "no-engine-command"),
        (["vllm", "serve", "--port", "1"], "no-model-in-command"),
        (["vllm serve 'm"], "command-unreadable"),
        (["vllm", "serve", "--quantization", "fp8"], "no-model-in-command"),
    ],
)
def test_what_cannot_be_read_is_told(words: list[str], code: str) -> None:
    with pytest.raises(InputError) as error:
        read_command(words, None)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("name", "text"), [("a.yml", "services: ["), ("a.yml", "- 1"), ("a.service", "[Service]\nExecStart="), ("x", "\x00")]
)
def test_bad_files_are_told(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError):
        read_command([], str(tmp_path / name))
    with pytest.raises(InputError) as error:
        read_command([], str(tmp_path / "none"))
    assert error.value.code == "file-unreadable"


@given(st.lists(st.text(max_size=12), max_size=8))
def test_any_words_give_a_command_or_a_message(words: list[str]) -> None:
    for candidate in (words, [*words, "vllm", "serve", *words], ["vllm/vllm-openai:x", *words]):
        try:
            hint = read_words(candidate).model
        except InputError as e:
            hint = str(e.hint)
        assert hint is not None


_SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
_ODD = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3))
_SERVICE = st.fixed_dictionaries(
    {},
    optional={
        "image": _ODD,
        "command": _ODD | st.just("vllm serve 'm"),
        "entrypoint": _ODD | st.just(["vllm", "serve"]),
        "environment": _ODD | st.just(["A=1", 2, None]),
    },
)


OUTCOMES = ("a model", "no-engine-command", "no-model-in-command", "command-unreadable")


def outcome(read: Callable[[Any], EngineCommand], given: object) -> str:
    try:
        return "a model" if read(given).model else "no model"
    except InputError as e:
        return e.code


@given(st.fixed_dictionaries({"services": _ODD | st.dictionaries(st.text(max_size=4), _SERVICE | _ODD, max_size=3)}) | _ODD)
def test_a_compose_document_of_any_shape_is_read_or_refused(document: object) -> None:
    assert outcome(read_compose, document) in OUTCOMES


@given(st.text() | st.text(alphabet="ExecStart=Environment\n'\"\\ vllm serve m-"))
def test_a_unit_of_any_text_is_read_or_refused(text: str) -> None:
    assert outcome(read_unit, f"[Service]\n{text}") in OUTCOMES


@pytest.mark.parametrize(
    "text",
    [
        "services: [1, 2]",
        "services: {a: 1, b: {command: 7}}",
        'services: {a: {image: vllm/vllm-openai:v0.16.0, command: "--model \'m"}}',
        "services:\n  a: &x {image: i}\n  b: *x",
        "a: b: c",
        "\tx: 1",
        "!!python/object/apply:os.system [id]",
        "%YAML 9.9\n---\n- x",
        "",
    ],
)
def test_odd_yaml_is_a_message(text: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        read_command((), str(tmp_path / "compose.yaml"))
    assert error.value.code in ("no-engine-command", "command-unreadable")
