"""The hint of a failed start names a change as the diagnosis itself shows it."""

import pytest

from firstlight.app.stages.failing import first_hint
from firstlight.core.diagnosis import Diagnosis, Remedy, Safety


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"max_model_len": 4096}, "--max-model-len 4096: it fits"),
        ({"bind": "0.0.0.0"}, "--host 0.0.0.0: it fits"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, "VLLM_USE_V2_MODEL_RUNNER=0: it fits"),
        ({"num_gpu_blocks_override": None}, "without --num-gpu-blocks-override: it fits"),
    ],
)
def test_a_change_is_named_as_the_engine_takes_it(change: dict[str, object], hint: str) -> None:
    remedy = Remedy(change=change, safety=Safety.ASK, because="it fits")
    assert first_hint(Diagnosis(outcome="failed", phase=None, cause=None, remedies=[remedy])) == hint
