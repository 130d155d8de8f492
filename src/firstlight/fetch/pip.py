"""The user's own pip: its indexes, mirrors, proxies and certificates. No index is named here."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from firstlight.core.errors import FirstlightError

SETTING = re.compile(r"(?P<section>:env:|[\w-]+)\.(?P<key>[\w-]+)=(?P<value>.+)")
SECTIONS = (":env:", "download", "install", "global")
DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


class IndexSettings(NamedTuple):
    """indexes: addresses of simple indexes, first the main one; find_links: local folders."""

    indexes: list[str]
    find_links: list[str]


def pip_command() -> list[str]:
    """pip of this interpreter, or the one that the standard library bundles for `ensurepip` (environments made without pip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return [sys.executable, f"{_bundled()}/pip"]


def pip_download(package: str, version: str, folder: Path, env: Mapping[str, str]) -> Path:
    """One wheel, without its dependencies, into `folder`. Raises FirstlightError: wheel-not-found."""
    argv = [*pip_command(), "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "-q"]
    done = _run([*argv, "-d", str(folder), f"{package}=={version}"], env, timeout=3600)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise FirstlightError(
            "wheel-not-found",
            f"pip could not fetch {package} {version}",
            evidence=tuple((done.stdout + done.stderr).strip().splitlines()[-4:]),
            hint="check the network and `pip config list`: firstlight uses the indexes that pip is set up with",
        )
    return wheels[0]


def index_settings(env: Mapping[str, str]) -> IndexSettings:
    """What pip itself would search. Empty where pip cannot be asked."""
    try:
        listed = _run([*pip_command(), "config", "list"], env, timeout=60)
        settings = read_config(listed.stdout)
        if settings.indexes[:1] == [""]:
            find = [] if importlib.util.find_spec("pip") else [str(_bundled())]
            main = _run([sys.executable, "-c", f"import sys; sys.path[:0] = {find!r}; {DEFAULT_INDEX}"], env, timeout=60).stdout.split()
            return settings._replace(indexes=[*main[:1], *settings.indexes[1:]])
    except (OSError, subprocess.SubprocessError, FirstlightError):
        return IndexSettings([], [])
    return settings


def read_config(text: str) -> IndexSettings:
    """`pip config list`: the environment wins over the command's section, that over the global one. Empty main index: pip's own. Pure."""
    found: dict[str, dict[str, str]] = {}
    for match in filter(None, map(SETTING.fullmatch, text.splitlines())):
        found.setdefault(match["section"], {})[match["key"]] = _unquoted(match["value"])

    def value(key: str) -> list[str]:
        return next((found[s][key].split() for s in SECTIONS if key in found.get(s, {})), [])

    local = [p.removeprefix("file://") for p in value("find-links") if "://" not in p or p.startswith("file://")]
    if value("no-index")[:1] not in ([], ["false"], ["0"], ["no"], ["off"]):
        return IndexSettings([], local)
    return IndexSettings([*(value("index-url")[:1] or [""]), *value("extra-index-url")], local)


def _unquoted(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _bundled() -> Path:
    spec = importlib.util.find_spec("ensurepip")
    wheels = sorted(Path(spec.origin).parent.glob("_bundled/pip-*.whl")) if spec and spec.origin else []
    if not wheels:
        raise FirstlightError(
            "pip-missing",
            "this Python has no pip",
            evidence=(sys.executable,),
            hint=f"{sys.executable} -m ensurepip, or your system's python3-pip",
        )
    return wheels[-1]


def _run(argv: Sequence[str], env: Mapping[str, str], *, timeout: float) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False)
