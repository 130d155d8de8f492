"""What speculative decoding adds to the KV cache: the layers of a drafter or of the model's own multi-token prediction, and states.

Sources (vLLM 0.25.1 and 0.32.0): models/*_mtp.py (one decoder layer for each predicted depth, numbered on from the model's),
config/speculative.py (where each family's config says how many), layers/mamba/abstract.py (one more state for each speculative token).
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from firstlight.core.checkpoint import Checkpoint, KvCacheGroup
from firstlight.plan.draft import Draft
from firstlight.plan.kv import GROWING
from firstlight.plan.numbers import number

DEPTHS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


class Speculation(Struct, frozen=True, kw_only=True):
    """checkpoint: the target with every layer that caches; layers: those beyond its own, on the last stage; states: more for a request."""

    checkpoint: Checkpoint
    layers: int = 0
    states: int = 0


def speculation(target: Checkpoint, spec: Mapping[str, Any] | None, draft: Draft | None) -> Speculation:
    """draft: the external drafter, None where there is none or it is not counted."""
    if not spec:
        return Speculation(checkpoint=target)
    added = draft.kv_groups if draft is not None else _own_layers(target) if "mtp" in str(spec.get("method", "")) else []
    layers = max((n + 1 for g in added for n in g.layers), default=0)
    return Speculation(checkpoint=_with(target, added), layers=layers, states=number(spec, "num_speculative_tokens") or layers)


def _own_layers(target: Checkpoint) -> list[KvCacheGroup]:
    """As many layers as the config says (one where it says nothing), each like the model's last that keeps every token."""
    growing = [g for g in target.kv_cache_groups if g.kind in GROWING and g.layers]
    last = max((max(g.layers) for g in growing), default=None)
    layers = list(range(next((n for key in DEPTHS if (n := number(target.config, key))), 1)))
    return [msgspec.structs.replace(g, layers=layers) for g in growing if last in g.layers]


def _with(target: Checkpoint, added: list[KvCacheGroup]) -> Checkpoint:
    """Numbered on from the target's own layers: like pages join, others are groups of their own."""
    if not added or not target.kv_cache_groups:
        return target
    first, groups = target.num_hidden_layers or 0, list(target.kv_cache_groups)
    for own in added:
        moved = [first + n for n in own.layers]
        at = next((i for i, g in enumerate(groups) if _page_of(g) == _page_of(own)), None)
        if at is None:
            groups.append(msgspec.structs.replace(own, layers=moved))
        else:
            groups[at] = msgspec.structs.replace(groups[at], layers=[*groups[at].layers, *moved])
    return msgspec.structs.replace(target, kv_cache_groups=groups)


def _page_of(group: KvCacheGroup) -> KvCacheGroup:
    return msgspec.structs.replace(group, layers=[])
