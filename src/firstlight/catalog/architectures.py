"""Known architectures: how their published checkpoints are laid out. Data in architectures.toml beside this file."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from msgspec import Struct, convert


class Architecture(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layout; the TOML file's head says what each field means. moe: module of the experts, `mlp` unless said."""

    names: list[str]
    family: str
    stack: str = "gqa"
    prefix: str = "model."
    embed: str = "embed_tokens"
    norm: str = "norm"
    head: str = "lm_head"
    tied_by_default: bool = False
    bias: str = "never"
    output_bias: bool = False
    qk_norm: str | None = None
    sinks: str | None = None
    head_gate: bool = False
    block_index: bool = False
    indexer: bool = False
    norms: list[str] = []
    extra_moe_norms: list[str] = []
    mlp: str = "mlp"
    moe: str = "mlp"
    router: str = "gate"
    router_bias: str | None = None
    router_linear_bias: bool = False
    experts: str = "split"
    experts_bias: bool = False
    expert_names: list[str] = []
    shared: str | None = None
    shared_gate: bool = False
    shared_beside_moe: bool = False
    dense_beside_moe: bool = False
    dense_width: str = "intermediate_size"
    joined_projections: bool = False
    vision: str | None = None
    mtp: str | None = None


@cache
def architectures() -> dict[str, Architecture]:
    """Every known architecture by each of its names."""
    import tomllib

    text = (files("firstlight.catalog") / "architectures.toml").read_text(encoding="utf-8")
    listed = convert(tomllib.loads(text)["architecture"], list[Architecture])
    return {name: one for one in listed for name in one.names}


def find_architecture(names: Sequence[str]) -> Architecture | None:
    """The first of `names` (config.json's `architectures`) that is known."""
    known = architectures()
    return next((known[n] for n in names if n in known), None)
