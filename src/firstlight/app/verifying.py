"""`firstlight verify`: options to checks, and the verdict for a person."""

import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from firstlight.app.endpoints import Target, planned_concurrency, target_of
from firstlight.app.output import glyphs, say
from firstlight.app.store import RunFolder
from firstlight.app.views.verdict import counts, left_out
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.errors import InputError, UsageError
from firstlight.core.reference import Reference
from firstlight.core.run import LaunchSpec, RunState
from firstlight.core.schema import decode, encode
from firstlight.core.verdict import CheckResult, Verdict
from firstlight.verify.claimed import claims_for
from firstlight.verify.reference import whole
from firstlight.verify.session import Claims
from firstlight.verify.verify import save_reference, verify

if TYPE_CHECKING:
    from firstlight.app.blaming import Asking


CLAIMS = ("tools", "reasoning", "json-schema", "vision")
"""Checks of what must be claimed: whoever names one by --checks claims it."""


class Verifying(msgspec.Struct, kw_only=True):
    """The command line of `verify`. live: each check is shown as it ends."""

    ref: str
    model: str | None = None
    profile: str = "quick"
    checks: str | None = None
    accept: Sequence[str] = ()
    kind: str | None = None
    claim: Sequence[str] = ()
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    concurrency: int | None = None
    api_key_file: str | None = None
    save_reference: str | None = None
    against: str | None = None
    engine_python: str | None = None
    tolerance: str | None = None
    budget: float | None = None
    blame: bool = False
    yes: bool = False
    allow: Sequence[str] = ()
    live: bool = False


async def verify_with(wanted: Verifying) -> Verdict:
    """Finds the endpoint, verifies it, and saves a reference if asked and passed."""
    _refuse_idle(wanted)
    _refuse_unwritable(wanted.save_reference)
    target = await target_of(wanted.ref, model=wanted.model, key_file=wanted.api_key_file)
    trusted = _trusted(wanted.against, wanted.engine_python) if wanted.against else None
    if wanted.live:
        click.echo(f"{target.endpoint.base_url}  {target.endpoint.model}  {wanted.profile}")
    claims, tolerance = _claims(wanted, target), wanted.tolerance or "same"
    ask = functools.partial(verify, profile=wanted.profile, claims=claims, trusted=trusted, tolerance=tolerance)
    verdict = await ask(
        target.endpoint,
        checks=_names(wanted.checks),
        accept=frozenset(wanted.accept),
        on_check=_show_check if wanted.live else None,
        api_key=target.api_key,
        budget_seconds=wanted.budget,
    )
    if wanted.blame:
        verdict = await _blamed(verdict, target, ask, wanted)
    if target.folder and (wanted.checks is None or not verdict.passed):  # some checks that passed say nothing of the others
        _keep(verdict, target.folder)
    if wanted.save_reference:
        await _save(wanted.save_reference, verdict, target)
    return verdict


def _keep(verdict: Verdict, folder: RunFolder) -> None:
    """The run's verdict; one that was ready and not yet verified is now what `up` would have made of it."""
    folder.save(verdict, "verdict.json")
    if verdict.passed:
        waiting = folder.run.state is RunState.READY
        folder.update(verified=time.time(), **({"state": RunState.SERVING, "reason": None} if waiting else {}))


async def _blamed(verdict: Verdict, target: Target, ask: "Asking", wanted: Verifying) -> Verdict:
    from firstlight.app.blaming_run import blamed
    from firstlight.app.consent import Consent

    return await blamed(verdict, target, ask, Consent(yes=wanted.yes, allowed=frozenset(wanted.allow)))


def _names(checks: str | None) -> list[str]:
    return [name for part in (checks or "").split(",") if (name := part.strip())]


def _refuse_idle(wanted: Verifying) -> None:
    """Options that would silently do nothing. Raises UsageError `option-needs`."""
    if wanted.checks is not None and not _names(wanted.checks):
        raise UsageError("unknown-check", "--checks names no check", hint="--checks NAME,... or without it, for all of the profile")
    folder = wanted.against is not None and os.path.isdir(wanted.against)
    answers = wanted.kind not in ("embedding", "reward")
    idle = {
        "--claim": (bool(wanted.claim) and not answers, "a model that writes answers"),
        "--against": (wanted.against is not None and not answers, "a model that writes answers"),
        "--tolerance": (wanted.tolerance is not None and wanted.against is None, "--against FILE|FOLDER"),
        "--engine-python": (wanted.engine_python is not None and not folder, "--against FOLDER"),
        "--yes": (wanted.yes and not wanted.blame, "--blame"),
        "--allow": (bool(wanted.allow) and not wanted.blame, "--blame"),
    }
    for option, (found, needs) in idle.items():
        if found:
            raise UsageError("option-needs", f"{option} does nothing without {needs}", hint=f"add {needs}, or leave {option} out")


def _trusted(ref: str, python: str | None) -> Reference:
    """From a reference file, or computed from a model folder."""
    if not os.path.isdir(ref):
        return whole(decode(Path(ref).read_bytes(), Reference, origin=ref), ref)
    if python is None:
        raise UsageError("reference-needs-python", f"{ref} is a folder", hint="--engine-python PATH, of an environment with transformers")
    from firstlight.verify.trusted import reference_of_folder

    return reference_of_folder(ref, python)


def _refuse_unwritable(file: str | None) -> None:
    """Before anything is asked: a reference that could not be kept is not worth the time."""
    folder = os.path.dirname(os.path.abspath(file)) if file else "."
    if file and not os.access(folder, os.W_OK):
        raise InputError("file-unwritable", f"the reference could not be written: {file}", evidence=(f"not writable: {folder}",))


def _write(file: str, taken: Reference) -> None:
    try:
        Path(file).write_bytes(encode(taken))
    except OSError as e:
        raise InputError("file-unwritable", f"the reference cannot be written: {file}", evidence=(e.strerror or str(e),)) from None


def _claims(wanted: Verifying, target: Target) -> Claims:
    """What the run's own checkpoint and flags claim, and what the command line adds."""
    folder = target.folder
    checkpoint = folder.try_load(Checkpoint, "checkpoint.json") if folder else None
    launch = folder.try_load(LaunchSpec, "launch.json") if folder else None
    known = claims_for(checkpoint, launch.argv if launch else [])
    named = [c for c in _names(wanted.checks) if c in CLAIMS]
    said = {name.replace("-", "_"): True for name in (*wanted.claim, *named)}
    said |= {"json_schema": True} if wanted.profile == "full" and target.endpoint.engine else {}
    parsers = {"tool_parser": wanted.tool_parser, "reasoning_parser": wanted.reasoning_parser}
    given = {"kind": wanted.kind, **parsers, "concurrency": wanted.concurrency or planned_concurrency(target)}
    return msgspec.structs.replace(known, **said, **{k: v for k, v in given.items() if v is not None})


async def _save(file: str, verdict: Verdict, target: Target) -> None:
    """A run that did not pass is not to be trusted."""
    if not verdict.passed:
        say(f"no reference saved: the answers did not pass ({file} is not written)")
        return
    taken = await save_reference(target.endpoint, api_key=target.api_key)
    _write(file, taken)
    say(f"reference of {len(taken.prompts)} prompts saved in {file}")


def _show_check(check: CheckResult) -> None:
    marks = glyphs()
    glyph, word, colour = _state(check)
    head = f"{getattr(marks, glyph)} {word:8} {check.name:24}{check.seconds:6.2f} s"
    first, *rest = [*check.evidence, *([f"note: {check.note}"] if check.note else [])] or [""]
    click.secho(head, fg=colour, nl=False)
    click.echo(f"  {first}")
    for line in rest if word in ("failed", "accepted") else [r for r in rest if r.startswith("note:")]:
        click.echo(f"{'':{len(head)}}  {line}")


def _state(check: CheckResult) -> tuple[str, str, str | None]:
    if check.skipped:
        return "skip", "skipped", None
    if check.passed:
        return "ok", "passed", "green"
    return ("warn", "accepted", "yellow") if check.accepted else ("fail", "failed", "red")


def show_verdict(verdict: Verdict, wanted: Verifying) -> None:
    """The last lines; the checks were shown as they ended."""
    failed = [c.name for c in verdict.checks if not (c.passed or c.skipped or c.accepted)]
    marks = glyphs()
    counted = f"{counts(verdict)} in {verdict.seconds:.1f} s"
    if verdict.passed:
        click.secho(f"\n{marks.ok} passed: {counted}", fg="green")
    else:
        click.secho(f"\n{marks.fail} not passed: {counted}; failed: {', '.join(failed) or 'nothing could be judged'}", fg="red")
    if cut := left_out(verdict):
        click.echo(f"  {marks.skip} for want of time: {cut}")
    for entry in verdict.blame or []:
        glyph, word = (marks.warn, "culprit") if entry.culprit else (marks.skip, "not the culprit")
        click.secho(f"  {glyph} {word}: {entry.knob}", fg="yellow" if entry.culprit else None)
        for line in entry.evidence:
            click.echo(f"      {line}")
    for line in verdict.cannot_see:
        click.echo(f"  cannot see {line}")
