"""Flags that the user gives the engine claim something: it is tested by `up` and by `verify RUN`."""

import json
from pathlib import Path

import pytest
from e2e_runner import Firstlight, run_folder

pytestmark = pytest.mark.llamacpp


def test_an_embedding_server_is_judged_by_its_embeddings(firstlight: Firstlight, demo_gguf: Path) -> None:
    up = firstlight("up", str(demo_gguf), "--name", "vectors", "--", "--embeddings", "--pooling", "mean")
    assert up.returncode == 0, up.stderr
    assert "/v1/embeddings" in up.stdout
    assert "an embedding model writes no tokens" in up.stderr
    verdict = json.loads((run_folder(firstlight.runs()[0]) / "verdict.json").read_text())
    assert [c["name"] for c in verdict["checks"]] == ["models", "embeddings"]
    asked = json.loads(firstlight("verify", "vectors", "-o", "json").stdout)
    assert [(c["name"], c["passed"]) for c in asked["checks"]] == [("models", True), ("embeddings", True)]
