"""The planning flags of `plan`, `up`, `ask` and `rehearse`: vLLM's names, dashes or underscores, short forms; the rest after `--`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from firstlight.app import completing
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError, UsageError
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import Machine
from firstlight.core.plan import EngineRef
from firstlight.core.schema import decode
from firstlight.plan.flags import BOOLEAN, FIELDS, SHORT, parse_value

F = TypeVar("F", bound=Callable[..., Any])
PURPOSES = ("single-user", "agents", "throughput", "long-context")
_HELP = {
    "tensor_parallel_size": "GPUs that share every layer.",
    "pipeline_parallel_size": "Stages that share the layers.",
    "data_parallel_size": "Copies of the model (of its attention, with expert parallelism).",
    "decode_context_parallel_size": "GPUs of one tensor-parallel group that share the KV cache's tokens.",
    "enable_expert_parallel": "Whole experts per GPU instead of a slice of each.",
    "nodes": "Machines like this one.",
    "max_model_len": "Tokens of one request, prompt and answer (128k, 128K).",
    "max_num_seqs": "Requests at once.",
    "max_num_batched_tokens": "Tokens of one step.",
    "gpu_memory_utilization": "Share of each GPU's memory that the engine may use.",
    "kv_cache_memory_bytes": "Bytes of KV cache per GPU, instead of what profiling leaves (16GiB).",
    "kv_cache_dtype": "auto, bfloat16, fp8, …",
    "dtype": "Dtype of unquantized weights and activations.",
    "enforce_eager": "No compilation, no CUDA graphs.",
    "mm_encoder_tp_mode": "weights (split) or data (a whole vision encoder per GPU).",
    "language_model_only": "Leave the vision and audio encoders out.",
    "speculative_config": "JSON: the drafter, as vLLM takes it.",
    "block_size": "Tokens of one KV block.",
}


class Planning(Struct, frozen=True, kw_only=True):
    """What the flags said. gpu: a machine that is not there; machine_file, checkpoint_file: JSON instead of looking."""

    intent: Intent
    gpu: str | None = None
    machine_file: str | None = None
    checkpoint_file: str | None = None

    @property
    def engine(self) -> EngineRef | None:
        """`vllm@0.16.0` as name and version; None when not said."""
        if self.intent.engine is None:
            return None
        name, _, version = self.intent.engine.partition("@")
        return EngineRef(name=name, version=version or None)

    def machine(self) -> Machine | None:
        """The imagined machine or the one in the file; None: this machine, which the caller probes."""
        if self.gpu and self.machine_file:
            raise UsageError("two-machines", "--gpu and --machine name two machines", hint="give one of them")
        if self.gpu:
            from firstlight.catalog.gpus import imagine

            return imagine(self.gpu)
        return decode(_text(self.machine_file), Machine, origin=self.machine_file) if self.machine_file else None

    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint in the file; None: the caller inspects the model."""
        return decode(_text(self.checkpoint_file), Checkpoint, origin=self.checkpoint_file) if self.checkpoint_file else None


class PlanningOption(click.Option):
    """An option that is also heard with underscores, as vLLM does."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, *("--" + o[2:].replace("-", "_") for o in shown if o.startswith("--") and "-" in o[2:])]
        try:
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown


class _Tokens(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """How long a request must be able to be: a number, spelled as vLLM spells lengths; `auto` would ask for nothing."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = parse_value("max_model_len", value) if isinstance(value, str) else value
        if found is not None and found < 1:
            raise UsageError("bad-flag-value", f"--context cannot be {value!r}", hint="a number of tokens: 32768, 128k, 128K")
        return found


class _PinValue(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """One planning flag's value, read as vLLM reads it."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.name = "json" if field == "speculative_config" else "text" if "dtype" in field or "mode" in field else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse_value(self.field, value) if isinstance(value, str) else value


def planning_options(command: F) -> F:
    """Adds the argument `extra_args` (after `--`) and every planning flag. `planning_of` takes them out of the parameters again."""
    return _with_options(command, _options(here=False))


def planning_options_here(command: F) -> F:
    """The same for verbs that start something: flags of another machine are heard, so that they can be refused, and not shown."""
    return _with_options(command, _options(here=True))


def _with_options(command: F, options: list[Any]) -> F:
    command = click.argument("extra_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ENGINE FLAGS]")(command)
    for field in reversed(FIELDS):
        command = _pin_option(field)(command)
    for add in reversed(options):
        command = add(command)
    return command


def planning_of(options: dict[str, Any], *, model: str | None) -> Planning:
    """Takes the planning parameters out of a command's own and makes the intent of them. Raises UsageError."""
    extra = list(options.pop("extra_args"))
    if extra and not extra[0].startswith("-"):
        raise UsageError("unexpected-argument", f"unexpected argument {extra[0]!r}", hint="the engine's own flags go after `--`")
    pins = Pins(**{f: options.pop(f) for f in FIELDS})
    checkpoint_file = options.pop("checkpoint_file")
    if not model and checkpoint_file is None:
        raise UsageError("model-missing", "no model was named", hint="give MODEL, or --checkpoint FILE")
    intent = Intent(
        model=model or checkpoint_file,
        engine=options.pop("engine"),
        pins=pins,
        purpose=options.pop("purpose"),
        context=options.pop("context"),
        concurrency=options.pop("concurrency"),
        trust_remote_code=options.pop("trust_remote_code"),
        extra_args=extra,
    )
    return Planning(intent=intent, gpu=options.pop("gpu"), machine_file=options.pop("machine_file"), checkpoint_file=checkpoint_file)


def _options(*, here: bool) -> list[Any]:
    machine_help = "A Machine as JSON (`firstlight probe -o json`); - is stdin."
    checkpoint_help = "A Checkpoint as JSON (`firstlight inspect -o json`); - is stdin."
    gpu_help = "Plan for a machine that is not there: 8xrtx-pro-6000-blackwell."
    return [
        click.option("--engine", metavar="NAME[@VERSION]", help="vllm, vllm@0.16.0, llamacpp."),
        click.option("--gpu", metavar="COUNTxNAME", hidden=here, shell_complete=completing.gpus, help=gpu_help),
        click.option("--machine", "machine_file", metavar="FILE", hidden=here, help=machine_help),
        click.option("--checkpoint", "checkpoint_file", metavar="FILE", hidden=here, help=checkpoint_help),
        click.option("--for", "purpose", type=click.Choice(PURPOSES), help="What the endpoint is for."),
        click.option("--context", type=_Tokens(), help="Tokens per request that must fit."),
        click.option("--concurrency", type=click.IntRange(min=1), help="Requests at once that you expect."),
        click.option("--trust-remote-code/--no-trust-remote-code", default=None, help="Run Python that comes with the model."),
    ]


def _pin_option(field: str) -> Any:
    name = "--" + field.replace("_", "-")
    short = [s for s, f in SHORT.items() if f == field]
    if field in BOOLEAN:
        return click.option(f"{name}/--no-{name[2:]}", *short, field, cls=PlanningOption, default=None, help=_HELP[field])
    return click.option(*short, name, field, cls=PlanningOption, type=_PinValue(field), help=_HELP[field])


def _text(path: str) -> bytes:
    """A file's content, or stdin's for `-`. Raises InputError `file-unreadable`."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as e:
        raise InputError("file-unreadable", f"{path} cannot be read", evidence=(e.strerror or str(e),)) from None
