"""What `preflight` and `check` look at, and what they print."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from firstlight.app.output import glyphs, show_findings
from firstlight.app.plan_options import Planning
from firstlight.app.stages.look import engine_hints
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError, InputError, UsageError
from firstlight.core.findings import Finding, Severity
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.ports import Host
from firstlight.core.units import GIB
from firstlight.preflight.command import EngineCommand
from firstlight.preflight.context import Context

MEASURED_FROM = 4 * GIB
CODES_OF_FILES = ("weights-absent", "shard-missing", "shard-truncated", "index-missing", "download-unfinished")


class Looked(NamedTuple):
    """context with everything that could be had; about: one line a fact, for people."""

    context: Context
    about: list[str]


def look(planning: Planning, *, host: str, engine_python: str | None) -> Looked:
    """Model, machine, engine and plan for `preflight`."""
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    checkpoint = planning.checkpoint() or _inspected(planning.intent.model, where)
    machine = planning.machine() or _probed(where, checkpoint, engine_hints(where, engine_python))
    engine = planning.engine or _preferred(checkpoint)
    install = _install(machine, engine)
    candidate = _candidate(checkpoint, machine, planning.intent, engine, install)
    context = Context(checkpoint=checkpoint, machine=machine, intent=planning.intent, candidate=candidate, install=install)
    return Looked(context, _about(context))


def look_at_command(command: EngineCommand, *, host: str, gpu: str | None, engine_python: str | None) -> Looked:
    """The same for a user's own command: its flags are the plan."""
    from firstlight.catalog.gpus import imagine
    from firstlight.plan.flags import pins_from_args
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    checkpoint, unread = _if_readable(command.model, where)
    folder = [str(Path(command.program).parent.parent)] if command.program and "/" in command.program else []
    machine = imagine(gpu) if gpu else _probed(where, checkpoint, [*engine_hints(where, engine_python), *folder])
    engine = EngineRef(name=command.engine, version=command.version)
    install = None if command.image else _install(machine, engine)
    pins = pins_from_args(command.args) if command.engine == "vllm" else Pins()
    name = f"{command.engine}@{command.version}" if command.version else command.engine
    intent = Intent(model=command.model, engine=name, pins=pins, env=command.env, bind="127.0.0.1", extra_args=[])
    context = Context(
        checkpoint=checkpoint,
        machine=machine,
        intent=intent,
        candidate=_as_candidate(engine, install, pins, command.args),
        install=install,
        command=True,
    )
    return Looked(context, [f"from the {command.origin}", *unread, *_about(context)])


def _if_readable(model: str, host: Host) -> tuple[Checkpoint | None, list[str]]:
    """A path inside a container, or a hub that does not answer, leaves the checkpoint unknown; the rest is still checked."""
    try:
        return _inspected(model, host), []
    except FirstlightError as e:
        return None, [f"{model} cannot be read from here ({e.code}): what depends on the model is not checked"]


def findings_of(context: Context, ignore: Sequence[str]) -> list[Finding]:
    """The checkpoint's, the machine's and every check's; for a machine that is not there, absent files are no blocker."""
    from firstlight.preflight.run import finish, run_checks

    marked = frozenset(ignore)
    carried = [f for holder in (context.checkpoint, context.machine) if holder is not None for f in holder.findings]
    imagined = context.machine is not None and context.machine.imagined
    softened = [_softened(f) if imagined else f for f in carried]
    return finish([*softened, *run_checks(context, ignore=marked)], ignore=marked)


def _softened(finding: Finding) -> Finding:
    about_files = finding.severity is Severity.BLOCKER and finding.code in CODES_OF_FILES
    return msgspec.structs.replace(finding, severity=Severity.WARNING) if about_files else finding


def show(looked: Looked, findings: list[Finding]) -> None:
    """What was looked at, every finding, and the verdict."""
    marks = glyphs()
    for line in looked.about:
        click.echo(f"  {line}")
    click.echo()
    show_findings(findings)
    blocking = [f for f in findings if f.severity is Severity.BLOCKER and not f.ignored]
    if findings:
        click.echo()
    if blocking:
        click.secho(f"{marks.fail} blocked by {_count(len(blocking), 'problem')}", fg="red")
    else:
        rest = [f for f in findings if f.severity is Severity.WARNING]
        click.secho(f"{marks.ok} nothing blocks" + (f", {_count(len(rest), 'warning')}" if rest else ""), fg="green")


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'s' if n != 1 else ''}"


def _about(context: Context) -> list[str]:
    from firstlight.app.stages import describe

    lines = [f"model    {describe.checkpoint(context.checkpoint)}"] if context.checkpoint else ["model    unknown"]
    if context.machine:
        lines.append(f"machine  {context.machine.hostname} · {describe.machine(context.machine, None)}")
    lines.append(f"engine   {context.named}" + (f" in {context.install.python or context.install.binary}" if context.install else ""))
    if context.candidate:
        lines.append(f"layout   {describe.layout(context.candidate)}")
    return lines


def _inspected(model: str, host: Host) -> Checkpoint:
    from firstlight.inspect.checkpoint import inspect
    from firstlight.inspect.sources import open_source

    return inspect(open_source(model, host, env=host.environ()))


def _probed(host: Host, checkpoint: Checkpoint | None, hints: Sequence[str]) -> Machine:
    """The disk is measured where reading it will take a while."""
    from firstlight.engines.registry import load_adapters
    from firstlight.probe.engines import find_engines
    from firstlight.probe.machine import probe_machine

    path, size = (checkpoint.path, checkpoint.file_bytes) if checkpoint else (None, None)
    machine = probe_machine(host, paths=[path] if path else [], measure_reads=(size or 0) > MEASURED_FROM)
    return msgspec.structs.replace(machine, engines=find_engines(host, load_adapters(), hints=hints))


def _preferred(checkpoint: Checkpoint) -> EngineRef:
    from firstlight.engines.registry import choose_adapter

    adapter = choose_adapter(checkpoint)
    return EngineRef(name=adapter.name if adapter else "vllm")


def _install(machine: Machine, engine: EngineRef) -> EngineInstall | None:
    fitting = [i for i in machine.engines if i.engine == engine.name and i.version and engine.version in (None, i.version)]
    return fitting[0] if fitting else None


def _candidate(checkpoint: Checkpoint, machine: Machine, intent: Intent, engine: EngineRef, install: EngineInstall | None) -> Candidate:
    """The plan's layout for the checkpoint as it is, without what the plan cures in it; the pins where nothing fits."""
    from firstlight.plan.plan import plan

    version = engine.version or (install.version if install else None)
    found = plan(checkpoint, machine, intent, engine=EngineRef(name=engine.name, version=version), install=install)
    if found.best is not None:
        return _uncured(found.best, intent)
    return _as_candidate(engine, install, intent.pins, [])


def _uncured(best: Candidate, intent: Intent) -> Candidate:
    """No overlay, and no KV cache dtype that nobody asked for: `preflight` speaks of the checkpoint, `up` of the plan."""
    args, at = list(best.args), next((i for i, a in enumerate(best.args) if a == "--kv-cache-dtype"), None)
    if at is not None:
        del args[at : at + 2]
    asked = intent.pins.kv_cache_dtype
    return msgspec.structs.replace(best, overlay=None, kv_cache_dtype=asked, args=[*args, *(["--kv-cache-dtype", asked] if asked else [])])


def _as_candidate(engine: EngineRef, install: EngineInstall | None, pins: Pins, args: Sequence[str]) -> Candidate:
    given: dict[str, Any] = {k: v for k, v in msgspec.structs.asdict(pins).items() if v is not None}
    known = {f.name for f in msgspec.structs.fields(Candidate)}
    ref = EngineRef(name=engine.name, version=engine.version or (install.version if install else None))
    return Candidate(engine=ref, args=list(args), **{k: v for k, v in given.items() if k in known and k != "args"})


def with_release(command: EngineCommand, release: str | None) -> EngineCommand:
    """`vllm@0.16.0` over what the command tells. Raises UsageError where it names another engine."""
    name, _, version = (release or "").partition("@")
    if name and name != command.engine:
        raise UsageError(
            "engine-unknown", f"the command runs {command.engine}, and --engine names {name}", evidence=(f"--engine {release}",)
        )
    return msgspec.structs.replace(command, version=version) if version else command


def read_command(words: Sequence[str], file: str | None) -> EngineCommand:
    """The command after `--`, or the one in a compose file, a unit or a shell script. Raises InputError."""
    from firstlight.preflight import command

    if words and file is None:
        return command.read_words(words) if len(words) > 1 else command.read_shell(words[0])
    if file is None:
        raise InputError(
            "no-engine-command", "no command was given", hint="firstlight check -- vllm serve MODEL ..., or firstlight check FILE"
        )
    try:
        text = Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError("file-unreadable", f"{file} cannot be read", evidence=(str(e),)) from None
    if file.endswith((".yml", ".yaml")):
        return command.read_compose(_yaml(text, file), origin=f"compose file {file}")
    return command.read_unit(text, origin=f"unit {file}") if "ExecStart=" in text else command.read_shell(text, origin=f"file {file}")


def _yaml(text: str, file: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise InputError("command-unreadable", f"{file} is not YAML", evidence=tuple(str(e).splitlines()[:3])) from None
