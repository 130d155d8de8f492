"""Which kernels the release gives a number format on this GPU: whether there is one, and whether it multiplies or unpacks first."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from firstlight.catalog.backends import first_release_where, lookup
from firstlight.core.findings import Finding
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.checks import quantization
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import capability

# Format -> the lowest compute capability whose tensor cores multiply it. Source: NVIDIA's architecture papers.
NATIVE = {"nvfp4": 100, "mxfp4": 100, "mxfp8": 100, "fp8": 89, "fp8-block": 89}
# Kernels that unpack the weights to 16 bits and multiply those.
_UNPACKS = re.compile(r"marlin|humming|emulat|exllama|conch|w4a16|w8a16|dequant", re.I)
_ABOUT = {"moe": "experts", "linear": "linear layers"}
# Format -> the method whose checkpoints the table was asked with.
_ASKED_WITH = {
    "nvfp4": ("modelopt",),
    "fp8": ("fp8",),
    "fp8-block": ("fp8",),
    "mxfp4": ("mxfp4", "gpt_oss_mxfp4", "compressed-tensors"),
    "int4": ("compressed-tensors",),
    "awq": ("awq",),
}
# Methods that quantize the experts alone.
_ONLY_EXPERTS = ("mxfp4", "gpt_oss_mxfp4")


class Kernel(NamedTuple):
    """chosen: None where the release has none. where: who says so."""

    kind: str
    sm: int
    chosen: str | None
    where: str

    @property
    def line(self) -> str:
        return f"{_ABOUT[self.kind]}, compute capability {capability(self.sm)}: {self.chosen or 'no kernel'} ({self.where})"

    @property
    def unpacks(self) -> bool:
        return self.chosen is not None and bool(_UNPACKS.search(self.chosen))


def form_of(context: Context) -> str | None:
    """The table's name for the checkpoint's number format; AWQ has kernels of its own."""
    spec = context.checkpoint.quantization if context.checkpoint else None
    if spec is None:
        return None
    return "awq" if spec.method == "awq" else spec.format


def layers(context: Context) -> list[str]:
    """`moe`, `linear`: the kinds of layer that carry the format."""
    assert context.checkpoint is not None
    spec = context.checkpoint.quantization
    kinds = ["moe"] if context.checkpoint.moe is not None else []
    return kinds if spec is not None and spec.method in _ONLY_EXPERTS else [*kinds, "linear"]


def kernels(context: Context) -> list[Kernel]:
    """What the engine said when it was asked, else what the release's table says; empty where neither speaks."""
    return _asked(context) or _listed(context)


def _asked(context: Context) -> list[Kernel]:
    answer, sms = context.answer, context.sms
    rows = [(b.layer.partition(" ")[0], b.chosen) for b in answer.backends] if answer and len(sms) == 1 else []
    return [Kernel(kind, sms[0], chosen, "the engine, asked") for kind, chosen in rows if kind in _ABOUT]


def _listed(context: Context) -> list[Kernel]:
    found = [(kind, sm, lookup(context.version, sm, f"{kind}-{form_of(context)}")) for kind in layers(context) for sm in context.sms]
    return [Kernel(kind, sm, c.chosen, f"{c.layer}, release {c.release}") for kind, sm, c in found if c is not None]


def present(context: Context) -> Iterator[Finding]:
    """A release that has no kernel for the format on this GPU refuses to start."""
    missing = [k for k in kernels(context) if k.chosen is None]
    if not missing or not _same_method(context) or any(f.code == "quantization-needs-newer-gpu" for f in quantization.method(context)):
        return
    first = missing[0]
    later = first_release_where(first.sm, f"{first.kind}-{form_of(context)}", lambda chosen: True, after=context.version)
    yield blocker(
        "quantization-kernel-missing",
        f"{context.named} has no kernel for {form_of(context)} {_ABOUT[first.kind]} on compute capability {capability(first.sm)}",
        evidence=[k.line for k in missing],
        hint=f"`firstlight engines install vllm@{later}`, the first release in the catalog that has one"
        if later
        else "a checkpoint in another format, or newer GPUs",
    )


def _same_method(context: Context) -> bool:
    """The table asked with one way of writing each format; a refusal of that one says nothing about another."""
    spec = context.checkpoint.quantization if context.checkpoint else None
    return spec is not None and spec.method in _ASKED_WITH.get(form_of(context) or "", ())


def native(context: Context) -> Iterator[Finding]:
    """Loads is not fast: a kernel that unpacks the weights saves memory and no time in prefill."""
    form = form_of(context) or ""
    lowest = NATIVE.get(form)
    if lowest is None or not context.sms:
        return
    found = kernels(context)
    old = [sm for sm in context.sms if sm < lowest]
    slow = [k for k in found if k.unpacks]
    if old:
        yield _hardware_lacks_it(form, lowest, old[0], [k for k in found if k.sm < lowest])
        yield from _cannot_run(context, form, lowest, [k for k in found if k.sm < lowest and k.chosen and not k.unpacks])
    elif slow:
        yield _release_lacks_it(context, form, slow)


def _hardware_lacks_it(form: str, lowest: int, sm: int, found: list[Kernel]) -> Finding:
    return remark(
        "quantization-emulated",
        f"{form} weights are unpacked to 16 bits before each product on compute capability {capability(sm)}",
        evidence=[f"tensor cores multiply {form} from compute capability {capability(lowest)} on", *(k.line for k in found)],
        note="memory is saved, prefill is not faster than with 16-bit weights",
    )


def _release_lacks_it(context: Context, form: str, slow: list[Kernel]) -> Finding:
    """The GPU could, and this release's kernel does not."""
    first = slow[0]
    native_in = first_release_where(first.sm, f"{first.kind}-{form}", lambda chosen: not _UNPACKS.search(chosen), after=context.version)
    tell = warning if native_in else remark
    return tell(
        "quantization-emulated",
        f"{context.named} unpacks {form} weights to 16 bits before each product, though these GPUs multiply {form}",
        evidence=[k.line for k in slow],
        note="memory is saved, prefill is not faster than with 16-bit weights",
        hint=f"`firstlight engines install vllm@{native_in}`, the first release in the catalog whose kernel multiplies it"
        if native_in
        else None,
    )


def _cannot_run(context: Context, form: str, lowest: int, bold: list[Kernel]) -> Iterator[Finding]:
    """0.14 and 0.15 take FlashInfer's FP4 product wherever FlashInfer is, without asking the GPU."""
    if form == "nvfp4" and bold and bold[0].kind == "linear":
        later = first_release_where(bold[0].sm, f"linear-{form}", lambda chosen: bool(_UNPACKS.search(chosen)), after=context.version)
        flag = context.release[:2] >= (0, 15)
        cures = [
            *(["--env VLLM_NVFP4_GEMM_BACKEND=marlin"] if flag else []),
            *([f"`firstlight engines install vllm@{later}`"] if later else []),
        ]
        yield warning(
            "quantization-kernel-needs-newer-gpu",
            f"{context.named} picks a kernel for {form} that runs from compute capability {capability(lowest)} on",
            evidence=[k.line for k in bold],
            note="where FlashInfer is usable; without it the release unpacks the weights, which works",
            hint="; or ".join(cures) or None,
        )


CHECKS = (
    Check("quantization-kernel", ("checkpoint", "machine"), present, engines=("vllm",)),
    Check("quantization-native", ("checkpoint", "machine"), native, engines=("vllm", "sglang")),
)
