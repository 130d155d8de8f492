"""A user's own engine command, in whatever it is wrapped: shell line, `docker run`, compose service, systemd unit. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from posixpath import basename
from typing import Any

from msgspec import Struct

from firstlight.core.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
_IMAGE = re.compile(r"(?:\S+/)?(?:vllm/)?vllm-openai(?:-\w+)?(?::v?(?P<tag>[\w.+-]+))?(?:@sha256:\w+)?$")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_SWITCHES = ("--enable-", "--disable-", "--no-", "--enforce-eager", "--trust-remote-code", "--async-scheduling", "--headless", "-ep")
_HINT = "give the command after `--`: firstlight check -- vllm serve MODEL ...; or a compose file or a unit file"


class EngineCommand(Struct, frozen=True, kw_only=True):
    """program: what runs the engine (interpreter, script, binary). version: where an image's tag says it. model: a name or a path."""

    engine: str
    model: str
    args: list[str] = []
    env: dict[str, str] = {}
    program: str | None = None
    version: str | None = None
    image: str | None = None
    origin: str = "command line"


def read_words(words: Sequence[str], *, env: Mapping[str, str] | None = None, origin: str = "command line") -> EngineCommand:
    """Finds the engine in a command's words. Raises InputError `no-engine-command`, `no-model-in-command`."""
    settings, rest = dict(env or {}), list(words)
    for at, word in enumerate(rest):
        if assignment := _ASSIGNMENT.fullmatch(word):
            settings[assignment[1]] = assignment[2]
        if image := _IMAGE.fullmatch(word):
            settings |= _passed_variables(rest[:at])
            return _vllm(_after_serve(rest[at + 1 :]), settings, None, origin, version=_tag(image["tag"]), image=word)
        if found := _engine_at(rest, at):
            engine, program, flags = found
            make = _vllm if engine == "vllm" else _llamacpp
            return make(flags, settings, program, origin)
    raise InputError("no-engine-command", f"no engine's command was found in the {origin}", evidence=(shlex.join(words)[:300],), hint=_HINT)


def _engine_at(words: list[str], at: int) -> tuple[str, str | None, list[str]] | None:
    """Engine, program and flags where the word at a position starts an engine."""
    word, following = words[at], words[at + 1 :]
    if basename(word) == "vllm" and following[:1] == ["serve"]:
        return "vllm", word, following[1:]
    if word in _MODULES and at > 0 and words[at - 1] == "-m":
        return "vllm", words[at - 2] if at > 1 else None, _after_serve(following)
    if basename(word).startswith("llama-server"):
        return "llamacpp", word, following
    return None


def _after_serve(words: list[str]) -> list[str]:
    """The image's entry point is the server, or `vllm serve`, with or without the words said again."""
    while words[:1] in (["vllm"], ["serve"]):
        words = words[1:]
    return words


def _passed_variables(words: Sequence[str]) -> dict[str, str]:
    """`-e NAME=VALUE` and `--env NAME=VALUE` of `docker run`."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    texts = [value for flag, value in pairs if flag in ("-e", "--env")] + [w[6:] for w in words if w.startswith("--env=")]
    return {m[1]: m[2] for t in texts if (m := _ASSIGNMENT.fullmatch(t))}


def _tag(tag: str | None) -> str | None:
    """`v0.16.0`, `0.16.0-cu129` -> 0.16.0; `latest` says nothing."""
    found = re.match(r"v?(\d+\.\d+(?:\.\d+)?(?:rc\d+)?)", tag or "")
    return found[1] if found else None


def _vllm(
    flags: list[str], env: dict[str, str], program: str | None, origin: str, *, version: str | None = None, image: str | None = None
) -> EngineCommand:
    model, args = _take_model(flags, ("--model",), positional=True)
    if model is None:
        raise InputError(
            "no-model-in-command",
            f"the vLLM command in the {origin} names no model",
            evidence=(shlex.join(flags)[:300],) if flags else (),
            hint=_HINT,
        )
    return EngineCommand(engine="vllm", model=model, args=args, env=env, program=program, version=version, image=image, origin=origin)


def _llamacpp(flags: list[str], env: dict[str, str], program: str | None, origin: str) -> EngineCommand:
    model, args = _take_model(flags, ("-m", "--model", "-hf", "--hf-repo"), positional=False)
    if model is None:
        raise InputError("no-model-in-command", f"the llama.cpp command in the {origin} names no model", hint=_HINT)
    return EngineCommand(engine="llamacpp", model=model, args=args, env=env, program=program, origin=origin)


def _take_model(flags: list[str], options: Sequence[str], *, positional: bool) -> tuple[str | None, list[str]]:
    """The model and the flags without it; the flag's value wins over the first word, and that over the last (`vllm serve -tp 2 MODEL`)."""
    for at, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in options and equals:
            return value, flags[:at] + flags[at + 1 :]
        if name in options and at + 1 < len(flags):
            return flags[at + 1], flags[:at] + flags[at + 2 :]
    if positional and flags and not flags[0].startswith("-"):
        return flags[0], flags[1:]
    if positional and len(flags) > 1 and not flags[-1].startswith("-") and _complete(flags[-2]):
        return flags[-1], flags[:-1]
    return None, flags


def _complete(word: str) -> bool:
    """Whether the next word is not this one's value: it is a value itself, has one, or is a switch by its name."""
    return not word.startswith("-") or "=" in word or word.startswith(_SWITCHES)


def read_shell(text: str, *, env: Mapping[str, str] | None = None, origin: str = "command line") -> EngineCommand:
    """One shell line; backslash newlines join. Raises InputError `command-unreadable`."""
    words = _split(text.replace("\\\n", " "), origin, comments=True)
    inner = next((w for w, before in zip(words[1:], words, strict=False) if before in ("-c", "-lc") and "vllm" in w), None)
    return read_shell(inner, env=env, origin=origin) if inner else read_words(words, env=env, origin=origin)


def _split(text: str, origin: str, *, comments: bool = False) -> list[str]:
    try:
        return shlex.split(text, comments=comments)
    except ValueError as e:
        raise InputError("command-unreadable", f"the command in the {origin} cannot be split into words", evidence=(str(e),)) from None


def read_unit(text: str, *, origin: str = "unit") -> EngineCommand:
    """A systemd unit's ExecStart and Environment lines."""
    joined = re.sub(r"\\\n\s*", " ", text)
    env: dict[str, str] = {}
    for line in re.findall(r"^Environment=(.*)$", joined, re.M):
        env |= {m[1]: m[2] for word in _split(line, origin) if (m := _ASSIGNMENT.fullmatch(word))}
    start = re.findall(r"^ExecStart=[-@:+!]*(.+)$", joined, re.M)
    if not start:
        raise InputError("no-engine-command", f"the {origin} has no ExecStart", hint=_HINT)
    return read_shell(start[-1], env=env, origin=origin)


def read_compose(document: Any, *, origin: str = "compose file") -> EngineCommand:
    """The first service of a compose document that runs an engine."""
    services = document.get("services") if isinstance(document, dict) else None
    for name, service in services.items() if isinstance(services, dict) else ():
        try:
            return _service(service, f"service {name} of the {origin}")
        except InputError as e:
            if e.code != "no-engine-command":
                raise
    raise InputError("no-engine-command", f"no service of the {origin} runs an engine", hint=_HINT)


def _service(service: Any, origin: str) -> EngineCommand:
    """Raises InputError; `no-engine-command` for a service that is no mapping, too."""
    if not isinstance(service, dict):
        raise InputError("no-engine-command", f"the {origin} is no service", hint=_HINT)
    words = [w for part in ("entrypoint", "command") for w in _words(service.get(part), origin)]
    return read_words([str(service.get("image", "")), *words], env=_variables(service.get("environment")), origin=origin)


def _words(value: Any, origin: str) -> list[str]:
    if isinstance(value, str):
        return _split(value.replace("\\\n", " "), origin)
    return [str(v) for v in value] if isinstance(value, list) else []


def _variables(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): str(v) for k, v in value.items() if v is not None}
    return {m[1]: m[2] for text in value if (m := _ASSIGNMENT.fullmatch(str(text)))} if isinstance(value, list) else {}
