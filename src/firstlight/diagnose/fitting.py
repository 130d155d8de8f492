"""Where a remedy helps: its own conditions, and what its words belong to. Pure."""

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from firstlight.catalog.rules import Pattern, RemedyTemplate, Rule, version_within
from firstlight.catalog.signs import Sign, flags_of, platform_named, signs
from firstlight.catalog.vocabulary import vocabulary
from firstlight.core.diagnosis import Remedy

ASSUMED_ENGINE = "vllm"
ASSUMED_PLATFORM = "cuda"
_FLAG = re.compile(r"--(?P<flag>[a-z][a-z0-9-]+)(?P<value> +(?:[A-Z][A-Z0-9_]{2,}|[a-z]+_[a-z0-9_]+))?")
_SMI = re.compile(r"nvidia-smi(?P<query>(?: --(?:query-compute-apps|format)=\S*[\w])*)")
_ASIDE = re.compile(r" \([^()]*\)")


class Scene(Struct, frozen=True, kw_only=True):
    """What a remedy may ask of a failure. text, frames: the message and its traceback; has: whether the log has a pattern anywhere."""

    engine: str | None = None
    version: str | None = None
    platform: str | None = None
    phase: str | None = None
    text: str = ""
    frames: str = ""
    has: Callable[[Pattern], bool] = lambda _: False


def fits(remedy: RemedyTemplate, rule: Rule, scene: Scene) -> bool:
    """Whether the remedy's own conditions hold; `when` and `lacks`, which ask the facts, are not looked at here."""
    engines = {scene.engine} if scene.engine else {*rule.engines} or {ASSUMED_ENGINE}
    if (remedy.engines and not engines & {*remedy.engines}) or not version_within(scene.version, remedy.versions):
        return False
    if remedy.platforms and (scene.platform or ASSUMED_PLATFORM) not in remedy.platforms:
        return False
    if remedy.phases and scene.phase not in remedy.phases:
        return False
    found = _any(remedy.match, scene.text) and _any(remedy.frames, scene.frames) and all(map(scene.has, remedy.with_log))
    spoilt = _none(remedy.unless, scene.text) and _none(remedy.unless_frames, scene.frames) and not any(map(scene.has, remedy.unless_log))
    return found and spoilt


def _any(patterns: tuple[Pattern, ...], text: str) -> bool:
    return not patterns or any(p.search(text) for p in patterns)


def _none(patterns: tuple[Pattern, ...], text: str) -> bool:
    return not any(p.search(text) for p in patterns)


def adapted(remedy: Remedy, template: RemedyTemplate, rule: Rule, scene: Scene) -> Remedy | None:
    """The remedy in the words of the log's engine and platform; None where it means nothing there, even if its rule forgot to say so."""
    own = scene.engine in template.engines or rule.engines == (scene.engine,)
    engine = None if own else scene.engine
    if remedy.change is not None:
        change = _change_in(remedy.change, engine)
        return structs.replace(remedy, change=change) if change and _belongs(" ".join(change), scene) else None
    action = _translated(remedy.action or "", platform_named(scene.platform))
    for part in dict.fromkeys(_ASIDE.findall(action)):
        if _said_in(part, engine, scene) is None:
            action = action.replace(part, "")
    said = _said_in(action, engine, scene)
    return structs.replace(remedy, action=said) if said else None


def _translated(action: str, platform: Sign | None) -> str:
    """With the platform's own tool for `nvidia-smi`, unless it is named already."""
    if platform is None or platform.smi is None or platform.smi.split()[0] in action:
        return action
    return _SMI.sub(lambda m: str(platform.holders or platform.smi) if m["query"] else str(platform.smi), action)


def _said_in(text: str, engine: str | None, scene: Scene) -> str | None:
    """A text with the engine's own names of flags; None where it has words of another engine or platform."""
    own = _action_in(text, engine)
    return own if own is not None and _belongs(text, scene) else None


def _belongs(words: str, scene: Scene) -> bool:
    """Whether no word belongs to other engines only, and none to other platforms only; of several, one that is at home here is enough."""
    rows = [row for row in signs().belongs if any(text in words for text in row.texts)]
    platforms = [_within(scene.platform, row.platforms) for row in rows if row.platforms]
    engines = [_within(scene.engine, row.engines) for row in rows if row.engines]
    return (any(platforms) or not platforms) and (any(engines) or not engines)


def _within(name: str | None, names: tuple[str, ...]) -> bool:
    return name is None or name in names


def _change_in(change: dict[str, Any], engine: str | None) -> dict[str, Any] | None:
    """vLLM's flags by the names of another engine; None where that has none, or names the values otherwise."""
    flags = flags_of(engine)
    if flags is None:
        return change
    renamed: dict[str, Any] = {}
    for name, value in change.items():
        own = name if name.isupper() or not _is_vllms(name) else flags.name_of(name)
        if own is None or name in flags.values:
            return None
        renamed[name if flags.plan else own] = value
    return renamed


def _action_in(action: str, engine: str | None) -> str | None:
    """The same of a text; None where it names a flag that the engine has not, or one with a value of vLLM's."""
    flags, failed = flags_of(engine), False
    if flags is None:
        return action

    def own(m: re.Match[str]) -> str:
        nonlocal failed
        flag = m["flag"].replace("-", "_")
        if not _is_vllms(flag):
            return m[0]
        name = flags.name_of(flag)
        failed = failed or name is None or (flag in flags.values and m["value"] is not None)
        return f"--{(name or flag).replace('_', '-')}{m['value'] or ''}"

    text = _FLAG.sub(own, action)
    return None if failed else text


def _is_vllms(name: str) -> bool:
    flags = vocabulary().flags
    return any(f"--{n.replace('_', '-')}" in flags for n in (name, name.removeprefix("no_")))
