"""What `up` does with its options: session, signals, progress, the last word."""

import asyncio
import os
import re
import signal
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from firstlight.app import flow
from firstlight.app.consent import Consent
from firstlight.app.emitter import Emitter
from firstlight.app.keys import generated_key, key_path
from firstlight.app.naming import run_name
from firstlight.app.notifying import NotifyProgress
from firstlight.app.output import say
from firstlight.app.plan_options import Planning
from firstlight.app.progress import JsonLines, LiveProgress, PlainProgress, choose_progress
from firstlight.app.session import Session, UpOptions
from firstlight.app.store import RunStore
from firstlight.app.up import up
from firstlight.core.errors import Exit, FirstlightError, HostError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.saved import SavedPlan
from firstlight.deploy.notify import Notifier
from firstlight.engines.command import refuse_secret_variables, refuse_secrets


def run_up(model: str | None, output: str, options: dict[str, Any], planning: Planning, *, saved: SavedPlan | None = None) -> int:
    """Runs the pipeline and prints its last word; returns the exit code. Raises FirstlightError."""
    session = make_session(options, planning)
    session.saved = saved
    shown = flow.stages_between("inspect", "plan") if session.options.dry_run else flow.on_request(session, list(flow.STAGES))
    stages = [s.name for s in shown]
    progress = choose_progress(output, f"firstlight up {session.intent.model}", stages)
    session.emitter.listeners.append(progress)
    if session.options.foreground:
        session.emitter.listeners.append(NotifyProgress(Notifier.from_environment(os.environ, os.getpid()), session.name, stages))
    try:
        code = asyncio.run(_guarded(session, progress))
    except FirstlightError:
        _tell_unasked(session, options.get("allow") or ())
        raise
    if code is Exit.OK:
        _last_word(session, output)
    return code


def _tell_unasked(session: Session, allowed: Sequence[str]) -> None:
    """A start that failed, and a yes to what was never asked: maybe a name that was meant otherwise."""
    for name in sorted(set(allowed) - session.consent.asked):
        asked = f"; what was asked: {', '.join(sorted(session.consent.asked))}" if session.consent.asked else ""
        say(f"--allow {name}: no question of this start has that name{asked}")


def make_session(options: dict[str, Any], planning: Planning) -> Session:
    from firstlight.engines.registry import load_adapters
    from firstlight.probe.hosts import open_host

    if planning.gpu or planning.machine_file or planning.checkpoint_file:
        hint = "firstlight plan takes --gpu, --machine and --checkpoint"
        raise UsageError("machine-not-here", "what is to be started needs a real machine", hint=hint)
    intent = _intent(options, planning.intent)
    emitter = Emitter(None, [])
    return Session(
        intent=intent,
        options=UpOptions(
            accept=_accepted(options["accept"]),
            ignore=frozenset(options["ignore"]),
            skip=frozenset(options["skip"]),
            dry_run=options["dry_run"],
            foreground=options["foreground"],
            attempts=options["attempts"],
            rehearse=options["rehearse"],
            ask=options["ask"],
            restart=options["restart"],
            on_event=options["on_event"],
            blame=options["blame"],
        ),
        host=open_host(intent.host, on_lost=lambda e: _cut(emitter, e)),
        adapters=load_adapters(),
        store=RunStore(),
        consent=Consent(yes=options["yes"], allowed=frozenset(options["allow"])),
        emitter=emitter,
        name=run_name(options["name"], name_of(intent.model)),
    )


def _accepted(names: Sequence[str]) -> frozenset[str]:
    """Checked now, and not when the engine is up. The verify room is loaded only where it is asked."""
    if not names:
        return frozenset()
    from firstlight.verify.verify import accepted_names

    return accepted_names(names)


def _cut(emitter: Emitter, error: HostError) -> None:
    emitter.emit("say", text=f"{error.message}; trying again")


def _intent(options: dict[str, Any], intent: Intent) -> Intent:
    key_file = options["api_key_file"] or _generated(options, intent)
    if options["bind"] not in ("127.0.0.1", "::1", "localhost") and not (key_file or options["allow_open"]):
        raise UsageError(
            "exposed-without-key",
            f"{options['bind']} is reachable by others, and no key was given",
            hint="--generate-key, --api-key-file FILE, or --allow-open if everybody may use it",
        )
    env = dict(_pair(p) for p in options["env"])
    refuse_secrets(intent.extra_args)
    refuse_secret_variables(env)
    return msgspec.structs.replace(
        intent,
        model=_absolute(intent.model),
        name=options["name"],
        host=options["host"],
        engine_python=options["engine_python"] and _absolute(options["engine_python"]),
        bind=options["bind"],
        port=options["port"],
        api_key_file=key_file and os.path.abspath(key_file),
        allow_open=options["allow_open"],
        gpus=_gpus(options["gpus"]),
        env=env,
    )


def _generated(options: dict[str, Any], intent: Intent) -> str | None:
    """The path of the name's own key; a dry run makes none."""
    if not options["generate_key"]:
        return None
    name = options["name"] or name_of(intent.model)
    return str(key_path(name)) if options["dry_run"] else generated_key(name)


def _absolute(model: str) -> str:
    """A path on this machine as an absolute one, so that the same model is the same request from any folder."""
    return os.path.abspath(os.path.expanduser(model)) if os.path.exists(os.path.expanduser(model)) else model


def _gpus(text: str | None) -> list[int] | None:
    """Indices as nvidia-smi counts, in the order given. Raises UsageError `bad-gpus`."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*[0-9]{1,4}\s*(,\s*[0-9]{1,4}\s*)*", text):
        raise UsageError("bad-gpus", f"--gpus {text!r} is not a list of indices", hint="--gpus 0,1")
    found = [int(part) for part in text.split(",")]
    if len(set(found)) < len(found):
        raise UsageError("bad-gpus", f"--gpus {text!r} names a GPU twice", hint="each index once: --gpus 0,1")
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[^\s=]+", name):
        raise UsageError("bad-env", f"--env {text!r} is not NAME=VALUE")
    return name, value


def name_of(model: str) -> str:
    """`demo`, `org/Name@rev` -> Name, a folder's or file's own name without .gguf."""
    plain = model.removeprefix("hf://").partition("@")[0] if not os.path.exists(model) else model
    return PurePath(plain.rstrip("/").partition(":")[0] or plain).name.removesuffix(".gguf")


async def _guarded(session: Session, progress: LiveProgress | PlainProgress | JsonLines) -> Exit:
    """The pipeline under SIGINT and SIGTERM: the first stops gracefully, the second kills."""
    task = asyncio.ensure_future(up(session))
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            task.cancel()
        elif session.supervisor is not None:
            asyncio.get_running_loop().run_in_executor(None, lambda: session.supervisor.stop(grace_seconds=0))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    with progress:
        try:
            await task
        except asyncio.CancelledError:
            return Exit.TERMINATED if received[:1] == [signal.SIGTERM] else Exit.INTERRUPTED
    return Exit.OK


def _last_word(session: Session, output: str) -> None:
    from firstlight.app import report

    if output == "human":
        report.print_dry_run(session) if session.options.dry_run else report.print_report(session)
    elif session.options.dry_run:
        report.emit_plan(session, output)
    else:
        report.emit_run(session, output)
