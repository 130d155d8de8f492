"""Composes a question to an engine: model, machine and plan as `plan` looks at them, then the environment that answers."""

import os
import sys
from collections.abc import Callable

import msgspec

from firstlight.app.consent import Consent
from firstlight.app.elsewhere import hub_environ, only_here, places_of
from firstlight.app.looking import Looked, is_at, look
from firstlight.app.places import data_folder
from firstlight.app.plan_options import Planning
from firstlight.app.planning import compute
from firstlight.core.answer import EngineAnswer
from firstlight.core.errors import UsageError
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.ports import Host, Source
from firstlight.core.units import parse_bytes


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `ask` that no other verb has."""

    host: str = "local"
    engine_python: str | None = None
    engine_wheel: str | None = None
    timeout: float = 120.0
    memory_limit: str = "4GiB"
    yes: bool = False
    allow: tuple[str, ...] = ()

    @property
    def consent(self) -> Consent:
        return Consent(yes=self.yes, allowed=frozenset(self.allow))


def ask_with(planning: Planning, asking: Asking, *, on_step: Callable[[str], None] = lambda text: None) -> EngineAnswer:
    """On another host its own engine answers; where only a release's Python files can, they do it here, with that host's GPUs and model.

    Raises FirstlightError; what the engine refuses or does not know is in the answer.
    """
    from firstlight.ask.ask import ask
    from firstlight.probe.hosts import open_host

    there = open_host(asking.host)
    looked = look(_with_engine(planning, asking), host=asking.host, engine_python=asking.engine_python, answered_here=True)
    install = _install(asking, looked)
    wheel = _wheel(asking, looked, install)
    host = open_host("local") if wheel else there
    source = _source(looked, there, asked_from=host)
    return ask(
        host,
        checkpoint=msgspec.structs.replace(looked.checkpoint, path=None) if source else looked.checkpoint,
        machine=looked.machine,
        candidate=_candidate(planning, looked._replace(install=install)),
        install=install,
        wheel=wheel,
        cache=f"{places_of(host).cache}/ask",
        timeout=asking.timeout,
        memory_limit_bytes=_bytes(asking.memory_limit),
        asking=asking_environment(host, asking.consent, on_step) if wheel and looked.engine.name == "vllm" else None,
        source=source,
        on_step=on_step,
    )


def _with_engine(planning: Planning, asking: Asking) -> Planning:
    """`--engine-wheel vllm==0.16.0` names the engine and version that the plan is for, too."""
    if asking.engine_wheel is None:
        return planning
    name, _, version = asking.engine_wheel.partition("==")
    if not version:
        raise UsageError("wheel-without-version", f"{asking.engine_wheel!r} names no release", hint="--engine-wheel vllm==0.16.0")
    return msgspec.structs.replace(planning, intent=msgspec.structs.replace(planning.intent, engine=f"{name}@{version}"))


def _install(asking: Asking, looked: Looked) -> EngineInstall | None:
    """The engine that answers; a release of which only the wheel is asked has none. Raises UsageError `no-engine-there`."""
    if asking.engine_wheel:
        return None
    if asking.engine_python and (looked.install is None or not is_at(looked.install, asking.engine_python)):
        release = f"{looked.engine.name} {looked.engine.version or ''}".strip()
        raise UsageError("no-engine-there", f"{asking.engine_python} has no {release}", hint="firstlight engines list shows what is here")
    return looked.install


def _wheel(asking: Asking, looked: Looked, install: EngineInstall | None) -> str | None:
    """The release to ask when nothing installed can answer about a GPU: the one named, else the newest in the table."""
    serves_here = install is not None and (install.device != "cpu" or not looked.machine.accelerators)
    if looked.engine.name != "vllm" or asking.engine_wheel or serves_here:
        return asking.engine_wheel
    from firstlight.catalog.backends import table

    version = looked.engine.version or (install.version if install else None) or table().releases[-1].version
    return f"vllm=={version}"


def _candidate(planning: Planning, looked: Looked) -> Candidate:
    """What the plan would start; where the plan sees nothing that works, the flags as given, so that the engine says it itself."""
    found = compute(planning, looked)
    extra = list(planning.intent.extra_args)
    if found.best is not None:
        return msgspec.structs.replace(found.best, args=[*found.best.args, *extra])
    pins = planning.intent.pins
    fields = {f: v for f in Candidate.__struct_fields__ if (v := getattr(pins, f, None)) is not None}
    fields.setdefault("tensor_parallel_size", _power_of_two(len(looked.machine.accelerators)))
    return Candidate(engine=looked.engine, args=extra, **fields)


def _power_of_two(count: int) -> int:
    return 1 << max(0, count.bit_length() - 1)


def asking_environment(host: Host, consent: Consent, on_step: Callable[[str], None]) -> EngineInstall:
    """The one environment that releases are asked in: the newest CPU build here, made with consent when there is none."""
    from firstlight.ask.environments import make_environment, prepare

    ready = [i for i in _ours(host) if i.engine == "vllm" and i.device == "cpu"]
    if named := os.environ.get("FIRSTLIGHT_ENGINE_PYTHON"):
        ready = [EngineInstall(engine="vllm", python=named, device="cpu"), *ready]
    if ready:
        return ready[0]
    python = _base_python()
    recipe = prepare(host, python, EngineRef(name="vllm"), cpu=True)
    folder = str(data_folder() / "engines" / recipe.name)
    consent.require(
        "install",
        f"make the environment that engines are asked in ({recipe.requirement})?",
        evidence=("1 GB to download, 3.5 GB on disk", folder),
    )
    return make_environment(host, folder, recipe, python=python, on_step=on_step)


def _base_python() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _ours(host: Host) -> list[EngineInstall]:
    """Newest first."""
    from firstlight.ask.environments import environments
    from firstlight.catalog.backends import version_key

    found = environments(host, str(data_folder() / "engines"))
    return sorted(found, key=lambda i: version_key(i.version or "0"), reverse=True)


def _source(looked: Looked, there: Host, *, asked_from: Host) -> Source | None:
    """Where the model's JSON comes from when it is no folder on the host that answers."""
    path, model = looked.checkpoint.path, looked.checkpoint.ref
    if looked.checkpoint.format == "gguf" or (path and there.is_local is asked_from.is_local):
        return None
    from firstlight.inspect.sources import open_source
    from firstlight.probe.local import LocalHost

    here = only_here(model, there)
    return open_source(here or path or model, LocalHost() if here else there, revision=looked.checkpoint.revision, env=hub_environ(there))


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError:
        raise UsageError("bad-size", f"--memory-limit cannot be {text!r}", hint="4GiB, or a number of bytes") from None
