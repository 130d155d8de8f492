"""What every verb looks at before it computes or starts anything: the model, the machine, the engine. One behaviour for all of them."""

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from firstlight.app.drafting import Drafter, look_at_drafter
from firstlight.app.places import cache_folder, data_folder
from firstlight.app.plan_options import Planning
from firstlight.catalog.engines import newest
from firstlight.catalog.presets import Preset, find_preset
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.findings import Finding, Severity
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import EngineRef
from firstlight.core.ports import EngineAdapter, Host
from firstlight.core.units import GIB, format_bytes
from firstlight.engines.registry import find_adapter, load_adapters

MEASURED_FROM = 4 * GIB


class Choice(NamedTuple):
    """install: None where the chosen engine is not installed; then findings say why it was chosen, unless the user named it."""

    adapter: EngineAdapter
    engine: EngineRef
    install: EngineInstall | None
    findings: Sequence[Finding] = ()


class Looked(NamedTuple):
    checkpoint: Checkpoint
    machine: Machine
    engine: EngineRef
    install: EngineInstall | None
    findings: Sequence[Finding] = ()
    drafter: Drafter = Drafter()


def look(
    planning: Planning,
    *,
    host: str = "local",
    engine_python: str | None = None,
    measure_reads: bool = False,
    answered_here: bool = False,
) -> Looked:
    """Each from a file or an imagined machine where the flags name one, else from the host. Raises FirstlightError.

    answered_here: the engine is one of this host's even where the machine is another (`ask`).
    """
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    hints = engine_hints(where, engine_python)
    checkpoint = planning.checkpoint() or look_at_model(planning.intent.model, where)
    elsewhere = planning.machine()
    machine = elsewhere or look_at_machine(where, checkpoint, hints=hints, measure_reads=measure_reads)
    installs = find_here(where, hints) if elsewhere and answered_here else machine.engines
    chosen = choose_engine(checkpoint, installs, planning.engine, engine_python=engine_python)
    return Looked(checkpoint, machine, chosen.engine, chosen.install, chosen.findings, look_at_drafter(planning.intent, checkpoint, where))


def look_at_model(model: str, host: Host) -> Checkpoint:
    """Headers and small files only. Raises FirstlightError; `not-fetched` for a preset whose file is not here."""
    preset = find_preset(model)
    found = read_checkpoint(place_of(model), host)
    return named_as(preset, model, found) if preset else found


def read_checkpoint(where: str, host: Host) -> Checkpoint:
    """A folder that only this machine has is read here, and has no path on `host` until it is copied there."""
    from firstlight.app.elsewhere import hub_environ, only_here
    from firstlight.inspect.checkpoint import inspect
    from firstlight.inspect.sources import open_source
    from firstlight.probe.local import LocalHost

    here = only_here(where, host)
    found = inspect(open_source(here or where, LocalHost() if here else host, env=hub_environ(host)))
    return msgspec.structs.replace(found, path=None) if here else found


def named_as(preset: Preset, model: str, found: Checkpoint) -> Checkpoint:
    """The preset's file by the preset's name."""
    return msgspec.structs.replace(found, ref=model, name=preset.model, license=found.license or preset.license)


def place_of(model: str) -> str:
    """A preset's file, which looking does not download; anything else is its own place. Raises FirstlightError `not-fetched`."""
    preset = find_preset(model)
    if preset is None:
        return model
    import asyncio

    from firstlight.fetch.fetch import estimate

    expected = asyncio.run(estimate(model, cache=str(cache_folder())))
    if expected.bytes_to_fetch != 0:
        raise FirstlightError(
            "not-fetched",
            f"{model} is not on this disk, and looking at it downloads nothing",
            evidence=(f"{format_bytes(expected.bytes_to_fetch)} to {expected.destination}",),
            hint=f"firstlight fetch {model}",
        )
    return posixpath.join(expected.destination, preset.file_name)


def look_at_machine(
    host: Host,
    checkpoint: Checkpoint | None,
    *,
    hints: Sequence[str],
    adapters: Sequence[EngineAdapter] | None = None,
    raw: dict[str, str] | None = None,
    measure_reads: bool = False,
) -> Machine:
    """The host with its engines and the disks that matter, asked side by side. measure_reads: the model's disk too."""
    from firstlight.app.elsewhere import places_of
    from firstlight.probe.machine import probe_machine
    from firstlight.probe.running import results, workers

    there = places_of(host)
    model, size = (checkpoint.path, checkpoint.file_bytes or 0) if checkpoint else (None, 0)
    paths = [p for p in (model, there.cache, there.state) if p and host.stat(p) is not None]
    with workers(host, 1) as beside:
        engines = beside.submit(find_here, host, hints, adapters)
        machine = probe_machine(host, paths=paths, raw=raw, measure_reads=measure_reads and size > MEASURED_FROM)
        (found,) = results([engines])
    return msgspec.structs.replace(machine, engines=found)


def find_here(host: Host, hints: Sequence[str], adapters: Sequence[EngineAdapter] | None = None) -> list[EngineInstall]:
    """Engines of the host. adapters: all that are registered, when not said."""
    from firstlight.probe.engines import find_engines

    return find_engines(host, load_adapters() if adapters is None else adapters, hints=hints)


def engine_hints(host: Host, engine_python: str | None) -> list[str]:
    """Interpreters to ask: the user's word, then the environments that firstlight made here, newest first. Another host knows its own."""
    named = [engine_python] if engine_python else []
    if not host.is_local:
        return named
    try:
        made = list(data_folder().glob("engines/*/bin/python"))
    except OSError:  # a home that is not ours to read
        return named
    return named + [str(p) for p in sorted(made, key=lambda p: [int(n) for n in re.findall(r"\d+", p.parts[-3])], reverse=True)]


def choose_engine(
    checkpoint: Checkpoint,
    installs: Sequence[EngineInstall],
    wanted: EngineRef | None,
    *,
    adapters: Sequence[EngineAdapter] | None = None,
    engine_python: str | None = None,
) -> Choice:
    """The engine that the user named; else the installed one that likes this checkpoint most; else the one that would, with a finding.

    Raises UsageError `engine-unknown`, `no-engine-for-model`.
    """
    known = load_adapters() if adapters is None else adapters
    if wanted is not None:
        adapter = find_adapter(wanted.name, known)
        install = install_of(installs, wanted, engine_python)
        return Choice(adapter, msgspec.structs.replace(wanted, version=wanted.version or (install.version if install else None)), install)
    ranked = sorted((a for a in known if a.accepts(checkpoint) > 0), key=lambda a: -a.accepts(checkpoint))
    if not ranked:
        raise _no_engine_for(checkpoint, known)
    for adapter in ranked:
        if install := install_of(installs, EngineRef(name=adapter.name), engine_python):
            return Choice(adapter, EngineRef(name=adapter.name, version=install.version), install)
    return _assumed(ranked[0])


def install_of(installs: Sequence[EngineInstall], wanted: EngineRef, engine_python: str | None = None) -> EngineInstall | None:
    """The one in the interpreter that was named, else the first, of those that say their version and have the wanted one."""
    fitting = [i for i in installs if i.engine == wanted.name and i.version and wanted.version in (None, i.version)]
    named = [i for i in fitting if engine_python and is_at(i, engine_python)]
    return next(iter(named or fitting), None)


def is_at(install: EngineInstall, place: str) -> bool:
    """place: an interpreter, a binary, or an environment's folder, as it was spelled when engines were looked for."""
    return place in (install.python, install.binary) or install.python == posixpath.join(place, "bin", "python")


def _assumed(adapter: EngineAdapter) -> Choice:
    engine = EngineRef(name=adapter.name, version=newest() if adapter.name == "vllm" else None)
    finding = Finding(
        code="engine-assumed",
        severity=Severity.NOTE,
        message=f"no engine was named and none that takes this checkpoint is installed: this is for {adapter.title}"
        + (f" {engine.version}, the newest that the catalog knows in full" if engine.version else ""),
        hint="--engine NAME@VERSION asks for another",
    )
    return Choice(adapter, engine, None, [finding])


def _no_engine_for(checkpoint: Checkpoint, known: Sequence[EngineAdapter]) -> UsageError:
    return UsageError(
        "no-engine-for-model",
        f"no engine takes a checkpoint like this one ({checkpoint.format})",
        evidence=(f"asked: {', '.join(a.title for a in known)}",),
        hint="--engine NAME tries one all the same",
    )


def engine_missing(choice: Choice, checkpoint: Checkpoint, machine: Machine, engine_python: str | None) -> FirstlightError:
    """For verbs that start something: the command that installs it, and what was found instead."""
    evidence = [f"{i.engine} {i.version or '?'} in {i.python or i.binary}" for i in machine.engines]
    evidence = evidence or ["no engine was found on this machine"]
    evidence += [f"{f.code}: {f.message}" for i in machine.engines for f in i.findings]
    evidence += [f"asked for: {engine_python}"] if engine_python else []
    return FirstlightError(
        "engine-missing",
        f"{checkpoint.format} checkpoints like this one need {choice.adapter.title}, and it is not installed here",
        evidence=tuple(evidence),
        hint=choice.adapter.install_hint(machine),
        exit_code=Exit.PREFLIGHT_BLOCKED,
    )
