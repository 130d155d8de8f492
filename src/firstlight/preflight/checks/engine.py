"""The engine itself: installed, starting, knowing its flags."""

import difflib
from collections.abc import Iterator

from firstlight.catalog import vocabulary
from firstlight.catalog.backends import release_for, table
from firstlight.core.findings import Finding
from firstlight.engines.registry import find_adapter
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import numbers


def installed(context: Context) -> Iterator[Finding]:
    """On a real machine something must run the plan; on an imagined one that is not the question."""
    assert context.machine is not None
    assert context.engine is not None
    if context.install is not None or context.machine.imagined or context.command:
        return
    adapter = find_adapter(context.engine)
    found = [f"{i.engine} {i.version} in {i.python or i.binary}" for i in context.machine.engines if i.version]
    yield blocker(
        "engine-missing",
        f"{context.named} is not installed here",
        evidence=found or ["no engine was found on this machine"],
        hint=f"`{adapter.install_hint(context.machine)}`",
    )


def broken(context: Context) -> Iterator[Finding]:
    """What the probe saw of engines that do not start: a blocker where it is the one to run, else told."""
    assert context.machine is not None
    for install in context.machine.engines:
        for finding in install.findings:
            if install == context.install or (context.install is None and install.engine in ("unknown", context.engine)):
                yield finding
            else:
                yield remark(finding.code, finding.message, evidence=finding.evidence, hint=finding.hint)


def known_release(context: Context) -> Iterator[Finding]:
    assert context.version is not None
    if not context.release:
        return
    newest = table().releases[-1].version
    if release_for(context.version) is None:
        yield remark(
            "release-not-in-catalog",
            f"{context.named} is older than every release in the catalog: kernels and parsers cannot be checked",
            evidence=[f"the catalog begins with {table().releases[0].version}"],
            hint="`firstlight ask MODEL` asks the engine itself",
        )
    elif context.release[:2] > numbers(newest)[:2]:
        yield remark(
            "release-not-in-catalog",
            f"{context.named} is newer than every release in the catalog: it is judged as {newest}",
            evidence=[f"the catalog ends with {newest}"],
            hint="`firstlight ask MODEL` asks the engine itself",
        )


def flags(context: Context) -> Iterator[Finding]:
    """Flags that the release does not have, with the nearest that it has."""
    if release_for(context.version) is None or context.version is None:
        return
    known = set(vocabulary.names("flags", context.version))
    for word in context.args:
        flag = word.partition("=")[0]
        if not flag.startswith("--") or _is_known(flag, known):
            continue
        spelled = flag.replace("_", "-")
        first, last = vocabulary.since("flags", spelled), vocabulary.until("flags", spelled)
        evidence = [flag] + ([f"releases with it: {first} to {last or 'the newest'}"] if first else [])
        near = difflib.get_close_matches(spelled, sorted(known), n=1, cutoff=0.75)
        hint = (
            f"did you mean {near[0]}?"
            if near and not first
            else "drop it" + (f", or use a release that has it: vllm@{first}" if first else "")
        )
        exact = release_for(context.version) == context.version
        tell, judged = (blocker, []) if exact else (warning, [f"judged as {release_for(context.version)}"])
        yield tell("flag-unknown", f"{context.named} has no flag {flag}", evidence=[*evidence, *judged], hint=hint)


def _is_known(flag: str, known: set[str]) -> bool:
    """As vLLM's parser: underscores, `--no-` forms, dotted keys of JSON flags (`--compilation-config.mode`), unique beginnings."""
    spelled = flag.replace("_", "-").split(".")[0].rstrip("+")
    plain = "--" + spelled.removeprefix("--no-") if spelled.startswith("--no-") else spelled
    return spelled in known or plain in known or spelled in ("--help", "--version") or sum(k.startswith(spelled) for k in known) == 1


def asked(context: Context) -> Iterator[Finding]:
    """The engine's own refusal, in its words."""
    answer = context.answer
    assert answer is not None
    if answer.refusal:
        lines = answer.refusal.strip().splitlines()
        yield blocker(
            "engine-refuses",
            f"{context.named}, asked about this model and plan, refuses it",
            evidence=[f"its words: {line}" for line in lines[-6:]],
            note=f"asked {answer.build}" if answer.build else None,
            hint="another layout, flag or release; `firstlight diagnose` reads the text as it reads a log",
        )


CHECKS = (
    Check("engine-installed", ("machine", "engine"), installed),
    Check("engine-starts", ("machine",), broken),
    Check("engine-asked", ("answer",), asked),
    Check("release-known", ("version",), known_release, engines=("vllm",)),
    Check("flags", ("args", "version"), flags, engines=("vllm",)),
)
