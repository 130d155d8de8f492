"""The longest request that vLLM takes from a config, and its refusal of a longer one before anything is started."""

from typing import Any

import msgspec
import pytest
from plan_models import checkpoint

from firstlight.catalog.gpus import imagine
from firstlight.core.intent import Intent, Pins
from firstlight.core.plan import EngineRef, PlanSet
from firstlight.plan.length import derived_length
from firstlight.plan.plan import plan

# Values that vLLM 0.25.1 itself gives for such configs (config/model.py, _get_and_verify_max_len).
CONFIGS: list[tuple[dict[str, Any], int | None]] = [
    ({"max_position_embeddings": 4096}, 4096),
    ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
    (
        {"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        131072,
    ),
    (
        {"max_position_embeddings": 262144, "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}},
        262144,
    ),
    ({"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, 8192),
    ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "longrope", "factor": 32.0}}, 131072),
    ({"max_position_embeddings": 131072, "model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131072),
    ({"n_positions": 1024, "seq_length": 2048}, 1024),
    ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
    ({"max_position_embeddings": 4096, "rope_parameters": {"full_attention": {"rope_type": "dynamic", "factor": 2.0}}}, 8192),
    ({"hidden_size": 64}, None),
    ({"max_position_embeddings": "many", "rope_scaling": ["yarn"]}, None),
]


@pytest.mark.parametrize(("config", "length"), CONFIGS)
def test_derived(config: dict[str, Any], length: int | None) -> None:
    assert derived_length(config) == length


def planned(machine: str, **more: Any) -> PlanSet:
    model = checkpoint("llama-3.1-8b")
    short = msgspec.structs.replace(model, config={**model.config, "max_position_embeddings": 4096}, max_position_embeddings=4096)
    pins = Pins(max_model_len=more.pop("max_model_len", None))
    return plan(short, imagine(machine), Intent(model="m", pins=pins, **more), engine=EngineRef(name="vllm", version="0.25.1"))


def test_more_than_the_config_allows_is_blocked_and_says_what_is() -> None:
    found = planned("1xh100-80gb-sxm", max_model_len=8192)
    assert found.verdict == "blocked"
    (told,) = [f for f in found.findings if f.severity == "blocker"]
    assert told.code == "max-model-len-too-large"
    assert "--max-model-len 4096" in (told.hint or "")
    assert found.best is not None


@pytest.mark.parametrize(
    "more",
    [
        {"max_model_len": 4096},
        {"max_model_len": 8192, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {"max_model_len": 8192, "extra_args": ["--hf-overrides", '{"max_position_embeddings": 8192}']},
    ],
)
def test_what_the_engine_takes_is_not_refused(more: dict[str, Any]) -> None:
    assert planned("1xh100-80gb-sxm", **more).verdict == "fits"


def test_the_planner_itself_never_goes_beyond() -> None:
    best = planned("1xh100-80gb-sxm").best
    assert best is not None
    assert best.max_model_len == 4096
