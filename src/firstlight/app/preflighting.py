"""What `preflight` and `check` look at, and what they print."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from firstlight.app import looking
from firstlight.app.output import glyphs, show_findings
from firstlight.app.plan_options import Planning
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import FirstlightError, InputError, UsageError
from firstlight.core.findings import Finding, Severity
from firstlight.core.intent import Intent, Pins
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, EngineRef
from firstlight.core.ports import Host
from firstlight.preflight.command import EngineCommand
from firstlight.preflight.context import Context

LARGEST_FILE = 1 << 20
CODES_OF_FILES = ("weights-absent", "shard-missing", "shard-truncated", "index-missing", "download-unfinished")


class Looked(NamedTuple):
    """context with everything that could be had; about: one line a fact, for people; findings: of the looking itself."""

    context: Context
    about: list[str]
    findings: Sequence[Finding] = ()


def look(planning: Planning, *, host: str, engine_python: str | None, prove_peers: bool = True) -> Looked:
    """Model, machine, engine and plan for `preflight`. prove_peers: test them where the plan has several GPUs of a real machine."""
    looked = looking.look(planning, host=host, engine_python=engine_python, measure_reads=True)
    checkpoint, machine, install = looked.checkpoint, looked.machine, looked.install
    candidate = _candidate(looked, planning.intent)
    if prove_peers and planning.machine() is None and candidate.tensor_parallel_size * candidate.pipeline_parallel_size > 1:
        machine = _proven(host, machine, install)
    context = Context(checkpoint=checkpoint, machine=machine, intent=planning.intent, candidate=candidate, install=install)
    return Looked(context, _about(context), looked.findings)


def _proven(host: str, machine: Machine, install: EngineInstall | None) -> Machine:
    from firstlight.probe.hosts import open_host
    from firstlight.probe.machine import prove_peers

    return prove_peers(open_host(host), machine, python=install.python if install else None)


def look_at_command(command: EngineCommand, *, host: str, gpu: str | None, engine_python: str | None) -> Looked:
    """The same for a user's own command: its flags are the plan."""
    from firstlight.catalog.gpus import imagine
    from firstlight.plan.flags import pins_from_args
    from firstlight.probe.hosts import open_host

    where = open_host(host)
    checkpoint, unread = _if_readable(command.model, where)
    runs_in = engine_python or _runs_in(command.program)
    hints = looking.engine_hints(where, runs_in)
    machine = imagine(gpu) if gpu else looking.look_at_machine(where, checkpoint, hints=hints, measure_reads=True)
    engine = EngineRef(name=command.engine, version=command.version)
    install = None if command.image else looking.install_of(machine.engines, engine, runs_in)
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


def _runs_in(program: str | None) -> str | None:
    """The interpreter beside a `vllm` that was named by its path; a `llama-server` is asked itself."""
    if program is None or "/" not in program:
        return None
    return program if Path(program).name == "llama-server" else str(Path(program).with_name("python"))


def _if_readable(model: str, host: Host) -> tuple[Checkpoint | None, list[str]]:
    """A path inside a container, or a hub that does not answer, leaves the checkpoint unknown; the rest is still checked."""
    try:
        return looking.look_at_model(model, host), []
    except FirstlightError as e:
        return None, [f"{model} cannot be read from here ({e.code}): what depends on the model is not checked"]


def findings_of(looked: Looked, ignore: Sequence[str]) -> list[Finding]:
    """The checkpoint's, the machine's and every check's; for a machine that is not there, absent files are no blocker."""
    from firstlight.preflight.run import finish, run_checks

    context, marked = looked.context, frozenset(ignore)
    carried = [f for holder in (context.checkpoint, context.machine) if holder is not None for f in holder.findings]
    imagined = context.machine is not None and context.machine.imagined
    softened = [_softened(f) if imagined else f for f in carried]
    return finish([*looked.findings, *softened, *run_checks(context, ignore=marked)], ignore=marked)


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


def _candidate(looked: looking.Looked, intent: Intent) -> Candidate:
    """The plan's layout for the checkpoint as it is, without what the plan cures in it; the pins where nothing fits."""
    from firstlight.plan.plan import plan

    engine, install = looked.engine, looked.install
    found = plan(looked.checkpoint, looked.machine, intent, engine=engine, install=install, draft=looked.drafter.checkpoint)
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
    """The command after `--`, or the one in a compose file, a unit or a shell script, with or without --file. Raises InputError."""
    from firstlight.preflight import command

    if file is None and len(words) == 1 and os.path.isfile(words[0]) and not os.access(words[0], os.X_OK):
        file = words[0]
    if words and file is None:
        return command.read_words(words) if len(words) > 1 else command.read_shell(words[0])
    if file is None:
        raise InputError(
            "no-engine-command", "no command was given", hint="firstlight check -- vllm serve MODEL ..., or firstlight check --file FILE"
        )
    try:
        if (size := os.path.getsize(file)) > LARGEST_FILE:
            raise InputError("file-unreadable", f"{file} is larger than a file with a command is", evidence=(f"{size:,} B",))
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
    except (yaml.YAMLError, RecursionError) as e:
        raise InputError("command-unreadable", f"{file} is not YAML", evidence=tuple(str(e).splitlines()[:3])) from None
