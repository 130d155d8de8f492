"""What a check may look at. Everything may be unknown; derived words are properties, so that each is decided in one place."""

import re
from dataclasses import dataclass
from functools import cached_property

from firstlight.core.answer import EngineAnswer
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import Accelerator, EngineInstall, Machine
from firstlight.core.plan import Candidate
from firstlight.engines.command import option_value
from firstlight.preflight.cuda import visible

_FULL_PRECISION = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}


def _explicit(dtype: str | None) -> str | None:
    return None if dtype in (None, "auto") else _FULL_PRECISION.get(dtype, dtype)


@dataclass(frozen=True, kw_only=True)
class Context:
    """candidate: the plan's choice, or (command) a user's own command line. install: the engine that will run. answer: what it said."""

    checkpoint: Checkpoint | None = None
    machine: Machine | None = None
    intent: Intent | None = None
    candidate: Candidate | None = None
    install: EngineInstall | None = None
    answer: EngineAnswer | None = None
    command: bool = False

    @cached_property
    def engine(self) -> str | None:
        """vllm, llamacpp, …; None: nobody has chosen."""
        wanted = (self.intent.engine or "").partition("@")[0] if self.intent else ""
        return (self.candidate.engine.name if self.candidate else None) or wanted or (self.install.engine if self.install else None)

    @cached_property
    def version(self) -> str | None:
        """Of the engine that will run: what is installed counts before what was wished for."""
        if self.install is not None and self.install.engine == self.engine and self.install.version:
            return self.install.version
        wanted = (self.intent.engine or "").partition("@")[2] if self.intent else ""
        return wanted or (self.candidate.engine.version if self.candidate else None)

    @property
    def release(self) -> tuple[int, ...]:
        """(0, 16, 0); empty for an unknown version, which no comparison with a release should follow."""
        match = re.match(r"v?(\d+(?:\.\d+)*)", self.version or "")
        return tuple(int(n) for n in match[1].split(".")) if match else ()

    @cached_property
    def named(self) -> str:
        """`vLLM 0.16.0` for messages."""
        title = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}.get(self.engine or "", self.engine or "the engine")
        return f"{title} {self.version}" if self.version else title

    @cached_property
    def device(self) -> str | None:
        """cpu | cuda | rocm; a machine without GPUs runs on its CPU."""
        if self.install is not None and self.install.device:
            return self.install.device
        if self.machine is None:
            return None
        return "cuda" if self.machine.accelerators else "cpu"

    @cached_property
    def gpus(self) -> list[Accelerator]:
        """Those that will be used: the intent's, else the visible ones; the first as many as the plan needs."""
        everything = self.machine.accelerators if self.machine and self.device != "cpu" else []
        if self.intent is not None and self.intent.gpus is not None:
            chosen = [g for g in everything if g.index in self.intent.gpus]
        else:
            chosen = visible(everything, self.variables.get("CUDA_VISIBLE_DEVICES"))
        return chosen[: self.world_size] if self.candidate else chosen

    @cached_property
    def sms(self) -> list[int]:
        return sorted({g.sm for g in self.gpus if g.sm is not None})

    @cached_property
    def args(self) -> list[str]:
        """The engine's flags as they will be given: the plan's, then the user's own."""
        return [*(self.candidate.args if self.candidate else []), *(self.intent.extra_args if self.intent else [])]

    @cached_property
    def variables(self) -> dict[str, str]:
        """The engine's environment as far as it is known: the machine's, the plan's, the user's."""
        machine = self.machine.environment if self.machine else {}
        return {**machine, **(self.candidate.env if self.candidate else {}), **(self.intent.env if self.intent else {})}

    def option(self, *names: str) -> str | None:
        return option_value(self.args, *names)

    @property
    def tensor_parallel_size(self) -> int:
        return self.candidate.tensor_parallel_size if self.candidate else 1

    @property
    def world_size(self) -> int:
        """Ranks on one node."""
        c = self.candidate
        return c.tensor_parallel_size * c.pipeline_parallel_size * c.data_parallel_size // max(1, c.nodes) if c else 1

    @cached_property
    def own_args(self) -> list[str]:
        """The flags that the user wrote, without the plan's: all of them in a command of the user's own."""
        if self.command:
            return self.args
        return list(self.intent.extra_args) if self.intent else []

    @cached_property
    def wished_kv_cache_dtype(self) -> str | None:
        """What the user said, in the engine's spelling; None for nothing or `auto`."""
        pinned = self.intent.pins.kv_cache_dtype if self.intent else None
        return _explicit(option_value(self.own_args, "--kv-cache-dtype") or pinned)

    @cached_property
    def planned_kv_cache_dtype(self) -> str | None:
        """What the command line will say, the plan's own choice included; None for nothing or `auto`."""
        planned = self.candidate.kv_cache_dtype if self.candidate else None
        return _explicit(self.option("--kv-cache-dtype") or planned) or self.wished_kv_cache_dtype

    @cached_property
    def embedded_kv_cache_dtype(self) -> str | None:
        """What the checkpoint's own files ask for."""
        embedded = self.checkpoint.kv_cache_quantization if self.checkpoint else None
        return embedded.dtype if embedded else None

    @cached_property
    def overlay_removes_kv_cache_dtype(self) -> bool:
        """The plan's overlay takes out every place that sets it."""
        embedded = self.checkpoint.kv_cache_quantization if self.checkpoint else None
        spec = self.candidate.overlay if self.candidate else None
        if embedded is None or spec is None:
            return False
        removed = {f"{p.file}:{'.'.join(p.path)}" for p in spec.patches if p.remove}
        return set(embedded.sources) <= removed

    @cached_property
    def is_mla(self) -> bool:
        c = self.checkpoint
        return c is not None and ((c.attention or "").endswith("mla") or any("mla" in g.kind for g in c.kv_cache_groups))
