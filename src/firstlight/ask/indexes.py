"""What the user's own package index says, asked through pip: its configuration, mirrors and credentials stay the user's."""

import re
from typing import Any

import msgspec

from firstlight.core.errors import FirstlightError
from firstlight.core.ports import Host

PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One file that pip would install. url: http(s) or file; requires: `Requires-Dist` lines as the file gives them."""

    name: str
    version: str
    url: str
    sha256: str | None = None
    requires: list[str] = []
    requires_python: str | None = None


def required_names(requires: list[str]) -> list[str]:
    """Names of the distributions that a release needs whatever the platform: `torch==2.13.0; …` -> `torch`, without extras."""
    return [match[0] for line in requires if "extra ==" not in line and (match := re.match(r"[\w.-]+", line))]


def resolve(host: Host, python: str, requirement: str, *, timeout: float = 120.0) -> Distribution:
    """The one file that pip would take for `requirement`, without installing or fully downloading it.

    Raises FirstlightError `release-not-found` when the index has none for this Python and platform.
    """
    return _report(host, python, [requirement, "--no-deps"], requirement, timeout)[0]


def resolve_all(host: Host, python: str, requirement: str, *, timeout: float = 600.0) -> list[Distribution]:
    """Everything that installing `requirement` would bring, in pip's own order."""
    return _report(host, python, [requirement], requirement, timeout)


def _report(host: Host, python: str, args: list[str], requirement: str, timeout: float) -> list[Distribution]:
    argv = [python, *PIP, "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    done = host.run([*argv, "--use-feature=fast-deps", *args], timeout=timeout)
    if not done.ok:
        tail = tuple(line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.startswith("ERROR"))
        raise FirstlightError(
            "release-not-found",
            f"pip finds no wheel for {requirement}",
            evidence=tail[-3:] or (f"exit status {done.returncode}",),
            hint="see the releases with `pip index versions NAME`; pip's own configuration names the index",
        )
    try:
        return [_distribution(item) for item in msgspec.json.decode(done.stdout)["install"]]
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError) as e:
        raise FirstlightError(
            "release-not-found",
            f"pip's report about {requirement} cannot be read",
            evidence=(f"{type(e).__name__}: {e}", f"found: {done.stdout[:80]!r}"),
            hint="pip 22.2 or newer writes it: `python -m pip install -U pip` in that environment",
        ) from None


def _distribution(item: dict[str, Any]) -> Distribution:
    metadata, info = item["metadata"], item["download_info"]
    return Distribution(
        name=metadata["name"],
        version=metadata["version"],
        url=info["url"],
        sha256=info.get("archive_info", {}).get("hashes", {}).get("sha256"),
        requires=metadata.get("requires_dist", []),
        requires_python=metadata.get("requires_python"),
    )


def pin_of(package: str, requires: list[str]) -> str | None:
    """The exact version that `requires` pins `package` to, without its local part: `torch==2.13.0+cpu; …` -> `2.13.0`."""
    for line in requires:
        match = re.match(rf"{re.escape(package)}\s*==\s*([0-9][\w.]*)", line)
        if match and "extra ==" not in line:
            return match[1]
    return None


def cuda_of(distributions: list[Distribution]) -> str | None:
    """The CUDA version that a resolved set brings along (`13.0`), from NVIDIA's runtime wheels; None for a CPU set."""
    for d in distributions:
        if re.fullmatch(r"(nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit)", d.name):
            return ".".join(d.version.split(".")[:2])
    return None
