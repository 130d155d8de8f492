"""Checks that come after the selector: a backend is chosen, and its metadata builder then refuses what it was chosen for.

The builders are made as the engine makes them, on the meta device. Only the engine's own refusals count; that a builder cannot
be made without a GPU says nothing.
"""

from __future__ import annotations

import traceback
from typing import Any

from .cache import backend_of

REFUSALS = (ValueError, NotImplementedError, AssertionError)


def refusal(config: Any, specs: dict[str, Any]) -> str | None:
    """The first refusal of a builder of these layers, in the engine's words; None when none refuses."""
    import torch

    context = config.compilation_config.static_forward_context
    tried: set[tuple[Any, ...]] = set()
    for name, spec in specs.items():
        backend = backend_of(context.get(name))
        key = (backend, type(spec), getattr(spec, "head_size", None), getattr(spec, "sliding_window", None))
        if backend is None or key in tried or not hasattr(backend, "get_builder_cls"):
            continue
        tried.add(key)
        try:
            builder = backend.get_builder_cls()
            with torch.device("meta"):
                builder(spec, [name], config, torch.device("meta"))
        except REFUSALS as e:
            if text := _about_cache(e, builder):
                return text
        except Exception:
            continue
    return None


def _about_cache(error: Exception, builder: type) -> str | None:
    """Refusals raised in the builder's own constructor that speak of what the user can choose; asserts on stubs have no text."""
    frames = traceback.extract_tb(error.__traceback__)
    own = bool(frames) and "/vllm/" in frames[-1].filename and frames[-1].name in ("__init__", "_init", "__post_init__")
    text = str(error).strip()
    words = ("kv", "cache", "dtype", "nvfp4", "fp8", "sm1", "compute capability", "not supported", "requires")
    return text if own and text and any(word in text.lower() for word in words) else None
