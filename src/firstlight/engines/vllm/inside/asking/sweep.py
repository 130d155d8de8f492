"""Puts every attention question of the table to one release's own selector: SMs x layer kinds x KV cache dtypes."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator
from typing import Any

from .spoof import change_gpu

SMS = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
# label: (head size, MLA, sparse, sinks). MLA's head size is its latent: kv_lora_rank + qk_rope_head_dim.
LAYERS: dict[str, tuple[int, bool, bool, bool]] = {
    "gqa64": (64, False, False, False),
    "gqa64+sink": (64, False, False, True),
    "gqa80": (80, False, False, False),
    "gqa96": (96, False, False, False),
    "gqa128": (128, False, False, False),
    "gqa192": (192, False, False, False),
    "gqa256": (256, False, False, False),
    "gqa512": (512, False, False, False),
    "mla576": (576, True, False, False),
    "mla320": (320, True, False, False),
    "mla576+dsa": (576, True, True, False),
    "mla512+dsa(v4)": (512, True, True, False),
}
HEADS = 64


class _Model(types.SimpleNamespace):
    """A model config for backends that look at the current one; what it lacks is False."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return False


def attention_cells(platform: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows {sm, layer, kv_cache_dtype, chosen, rejected}; and what could not be asked, one line each."""
    import torch

    dtypes = cache_dtypes()
    cells: list[dict[str, Any]] = []
    problems: list[str] = []
    with _current_config() as config:
        for sm in SMS:
            change_gpu(sm)
            for label, shape in LAYERS.items():
                _set_model(config, shape, torch.bfloat16)
                for dtype in dtypes:
                    where = {"sm": sm[0] * 10 + sm[1], "layer": label, "kv_cache_dtype": dtype}
                    try:
                        cells.append({**where, **_ask(platform, shape, dtype, torch.bfloat16)})
                    except Exception as e:
                        problems.append(f"{where}: {type(e).__name__}: {str(e)[:200]}")
    return cells, problems


def cache_dtypes() -> list[str]:
    """The values that this release takes for --kv-cache-dtype."""
    from typing import get_args

    return list(get_args(importlib.import_module("vllm.config.cache").CacheDType))


def _ask(platform: Any, shape: tuple[int, bool, bool, bool], kv_cache_dtype: str, dtype: Any) -> dict[str, Any]:
    selector = importlib.import_module("vllm.v1.attention.selector").AttentionSelectorConfig
    head, mla, sparse, sink = shape
    asked = {"head_size": head, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype, "block_size": None}
    config = selector(**asked, use_mla=mla, use_sparse=sparse, has_sink=sink)
    more = {"num_heads": HEADS} if "num_heads" in platform.get_valid_backends.__code__.co_varnames else {}
    valid, rejected = platform.get_valid_backends(platform.get_device_capability(), config, **more)
    return {"chosen": _first(valid), "rejected": reasons(rejected)}


def _first(valid: list[Any]) -> str | None:
    """The engine takes the lowest priority number; releases differ in how they hold it."""
    named: list[tuple[int, str]] = []
    for candidate in valid:
        pair = (candidate.priority, candidate.backend) if hasattr(candidate, "priority") else (candidate[1], candidate[0])
        named.append((pair[0], pair[1].name))
    return min(named)[1] if named else None


def reasons(rejected: dict[Any, Any]) -> dict[str, list[str]]:
    """The engine's own reasons by backend; releases differ in whether a priority stands beside them."""
    return {backend.name: list(why[1] if isinstance(why, tuple) else why) for backend, why in rejected.items()}


@contextlib.contextmanager
def _current_config() -> Iterator[Any]:
    """An engine config made without a model, set as the current one."""
    config = importlib.import_module("vllm.config")
    made = config.VllmConfig()
    with config.set_current_vllm_config(made):
        yield made


def _set_model(config: Any, shape: tuple[int, bool, bool, bool], dtype: Any) -> None:
    head, mla, _, _ = shape
    wide = head == 576  # DeepSeek and Kimi; smaller latents come with 64-wide heads
    text = types.SimpleNamespace(
        qk_nope_head_dim=128 if wide else 64,
        qk_rope_head_dim=64,
        v_head_dim=128 if wide else 64,
        kv_lora_rank=head - 64,
        index_topk=2048,
    )
    model = _Model(
        hf_text_config=text,
        hf_config=text,
        dtype=dtype,
        max_model_len=8192,
        use_mla=mla,
        get_num_attention_heads=lambda *a, **k: HEADS,
        get_num_kv_heads=lambda *a, **k: 1 if mla else 8,
        get_head_size=lambda *a, **k: head,
    )
    object.__setattr__(config, "model_config", model)
