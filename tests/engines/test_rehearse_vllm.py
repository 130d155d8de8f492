"""A rehearsal and vLLM's compile cache: the key, by the engine's own configuration class."""

import os
import subprocess

import pytest

from firstlight.core.run import LaunchSpec
from firstlight.engines.command import option_value
from firstlight.engines.vllm.rehearsal import rehearsal_spec

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(700)]
KEY = """
import json, sys
import vllm.config.compilation as compilation
compilation.is_torch_equal_or_newer = lambda release: False  # as on the PyTorch that these releases were built with
print(compilation.CompilationConfig(**json.loads(sys.argv[1])).compute_hash())
"""


def test_what_a_rehearsal_tells_does_not_change_the_compile_key(vllm_python: str) -> None:
    launch = LaunchSpec(engine="vllm", argv=[vllm_python, "serve", "/m"], port=8000)
    rehearsed = rehearsal_spec(launch, port=1, version="0.25.1", torch="2.11.0")
    config = option_value(rehearsed.argv, "--compilation-config") or ""

    def key(config: str, level: str) -> str:
        env = os.environ | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": level}
        argv = [vllm_python, "-c", KEY, config]
        return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=200).stdout.split()[-1]

    as_launched = key("{}", "INFO")
    assert key(config, rehearsed.env["VLLM_LOGGING_LEVEL"]) == as_launched
    assert key("{}", "DEBUG") != as_launched, "the reason for all this is gone"
