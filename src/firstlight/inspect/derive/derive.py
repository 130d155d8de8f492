"""`expected_groups`: config -> the tensor groups that its published checkpoint has."""

from collections.abc import Mapping
from typing import Any

from firstlight.catalog.architectures import find_architecture
from firstlight.core.checkpoint import QuantSpec, TensorGroup
from firstlight.inspect.derive.parts import Missing, Part, Sizes
from firstlight.inspect.derive.quantized import tensor_groups
from firstlight.inspect.derive.stacks import layout


def expected_groups(
    config: Mapping[str, Any], quant: QuantSpec | None, raw_quant: Mapping[str, Any] | None
) -> tuple[list[TensorGroup], str | None]:
    """The groups, or none and the reason: an architecture that is not known, or a size that the config lacks."""
    names = config.get("architectures") or []
    architecture = find_architecture(names)
    if architecture is None:
        return [], f"the layout of {', '.join(names) or 'an unnamed architecture'} is not known"
    try:
        parts = [_renamed(p, quant) for p in layout(architecture, Sizes(config))]
        return tensor_groups(parts, quant, config, raw_quant), None
    except Missing as e:
        return [], f"config.json does not say {e}"


def _renamed(part: Part, quant: QuantSpec | None) -> Part:
    """The quantization's own names show whether a multimodal wrapper stands in front of the text model (MiniMax-M3)."""
    wrapped = quant is not None and any(n.startswith("language_model.model.") for n in quant.layers)
    return part._replace(name="language_model." + part.name) if wrapped and part.name.startswith("model.") else part
