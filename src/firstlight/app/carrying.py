"""Brings firstlight itself to another host, for what has to run there by itself: a service. All that it needs there is Python 3.11."""

import importlib.metadata
import io
import json
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import firstlight
from firstlight.app.consent import Consent
from firstlight.app.elsewhere import places_of
from firstlight.ask.lasting import run_lasting
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.ids import digest
from firstlight.core.ports import Host
from firstlight.core.units import format_bytes

OLDEST = (3, 11)
RECORD, MAIN = "carried.json", "__main__.py"
LEFT_OUT = frozenset({"huggingface_hub"})  # a service downloads nothing
PIP_SECONDS = 1800.0
_ASK = "import json, sys, sysconfig; print(json.dumps([sys.executable, sys.version_info[:2], sysconfig.get_config_var('SOABI')]))"
_UNPACK = "import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode='r|gz').extractall(sys.argv[1])"
_RUN = "from firstlight.app.main import main\n\nmain()\n"


class Carried(NamedTuple):
    """firstlight on another host: `[python, folder, VERB, …]` runs it there."""

    python: str
    folder: str

    def argv(self, *words: str) -> list[str]:
        return [self.python, "-E", "-s", self.folder, *words]


class Interpreter(NamedTuple):
    path: str
    version: tuple[int, int]
    abi: str | None


def carried_folder() -> Path | None:
    """The folder that this very process was carried to; None where firstlight is installed as usual."""
    folder = Path(firstlight.__file__).resolve().parents[1]
    return folder if (folder / RECORD).exists() else None


def carry(host: Host, consent: Consent, say: Callable[[str], None], *, also: str | None = None) -> Carried:
    """What is there already is used. also: another interpreter that is there for good (the engine's).

    Raises FirstlightError `python-too-old`, `cannot-carry`; ConsentError.
    """
    python, parts = interpreter_of(host, also), list(distributions())
    names = sorted(f"{d.name} {d.version}" for d in parts)
    package = _packed(_own_files())
    folder = posixpath.join(places_of(host).data, "carried", digest([names, python.abi, len(package), digest(package.hex())]))
    found = Carried(python.path, folder)
    if host.stat(posixpath.join(folder, RECORD)) is not None:
        return found
    same = python.abi == _own_abi()
    archive = _packed([*_own_files(), *(pair for d in parts for pair in _files_of(d))]) if same else package
    how = f"{format_bytes(len(archive))} copied" if same else f"{format_bytes(len(archive))} copied, the rest by that host's pip"
    question = f"Put firstlight {firstlight.__version__} onto {host.name}, so that the service can run there by itself?"
    consent.require("carry-firstlight", question, evidence=(f"into {folder}", f"for {python.path}; {how}", f"with {', '.join(names)}"))
    say(f"bringing firstlight to {host.name}")
    _put(host, folder, python, archive, None if same else [f"{d.name}=={d.version}" for d in parts])
    return found


def known_there(host: Host) -> Carried | None:
    """The one that was brought there last, whatever its version."""
    root = posixpath.join(places_of(host).data, "carried")
    if host.stat(root) is None:
        return None
    records = [r for f in host.list(root) if (r := host.stat(posixpath.join(f.path, RECORD))) is not None]
    if not records:
        return None
    newest = max(records, key=lambda r: r.modified or 0.0).path
    return Carried(json.loads(host.read(newest))["python"], posixpath.dirname(newest))


def interpreter_of(host: Host, also: str | None) -> Interpreter:
    """The newest enough one, like ours if there is such. Raises FirstlightError `python-too-old`."""
    names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", *([also] if also else [])]
    found = [i for name in names if (i := _asked(host, name)) is not None]
    fit = [i for i in found if i.version >= OLDEST]
    if not fit:
        seen = tuple(f"{i.path}: {'.'.join(map(str, i.version))}" for i in found) or ("no python3 there",)
        hint = "install Python 3.11 or newer there; `up --host` and everything about runs needs only 3.9"
        raise FirstlightError("python-too-old", f"a service on {host.name} needs Python 3.11 there", evidence=seen, hint=hint)
    return next((i for i in fit if i.abi == _own_abi()), fit[0])


def _asked(host: Host, name: str) -> Interpreter | None:
    try:
        done = host.run([name, "-I", "-c", _ASK])
        path, version, abi = json.loads(done.stdout)
        return Interpreter(path, (version[0], version[1]), abi)
    except HostError as e:
        if e.code in ("command-not-found", "permission-denied", "file-not-found"):
            return None
        raise
    except ValueError:
        return None


def _own_abi() -> str | None:
    import sysconfig

    found = sysconfig.get_config_var("SOABI")
    return found if isinstance(found, str) else None


def distributions() -> Iterator[importlib.metadata.Distribution]:
    """What firstlight requires, and what that requires, as it is installed here."""
    seen, wanted = set[str](), ["firstlight"]
    while wanted:
        name = _plain(wanted.pop())
        if name in seen or name in LEFT_OUT:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or Python
        wanted += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in found.requires or [] if "extra ==" not in line]
        if name != "firstlight":
            yield found


def _plain(name: str) -> str:
    return re.sub(r"[-.]+", "_", name).lower()


def _own_files() -> list[tuple[str, bytes]]:
    """Our package, its entry points, and what runs it."""
    root = Path(str(resources.files("firstlight")))
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
    own = [(f"firstlight/{p.relative_to(root).as_posix()}", p.read_bytes()) for p in files]
    information = importlib.metadata.distribution("firstlight")
    place = f"firstlight-{information.version}.dist-info"
    kept = [(f"{place}/{n}", text.encode()) for n in ("METADATA", "entry_points.txt") if (text := information.read_text(n))]
    return [*own, *kept, (MAIN, _RUN.encode())]


def _files_of(part: importlib.metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    for file in part.files or []:
        if ".." not in file.parts and not file.is_absolute() and not file.name.endswith(".pyc"):
            path = Path(str(file.locate()))
            if path.is_file():
                yield file.as_posix(), path.read_bytes()


def _packed(files: list[tuple[str, bytes]]) -> bytes:
    """The same files are the same bytes: no times, no owners."""
    import gzip

    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as squeezed, tarfile.open(fileobj=squeezed, mode="w") as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if name.endswith(".so") else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _put(host: Host, folder: str, python: Interpreter, archive: bytes, wanted: list[str] | None) -> None:
    """Whole or not at all: its record comes last, and a folder without one is made again. Raises FirstlightError `cannot-carry`."""
    host.remove(folder)
    host.mkdir(folder, 0o700)
    done = host.run([python.path, "-c", _UNPACK, folder], stdin=archive, timeout=300)
    if done.ok and wanted:
        pip = [python.path, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", folder, *wanted]
        done = run_lasting(host, pip, scratch=folder, timeout=PIP_SECONDS)
    if done.ok:
        done = host.run([*Carried(python.path, folder).argv("--version")], timeout=60)
    if not done.ok:
        raise FirstlightError(
            "cannot-carry",
            f"firstlight cannot be brought to {host.name}",
            evidence=(f"for {python.path}", *done.stderr.decode("utf-8", "replace").splitlines()[-4:]),
            hint="install it there (pipx install firstlight), log in, and say `firstlight service install` there",
        )
    host.write(posixpath.join(folder, RECORD), json.dumps({"python": python.path, "firstlight": firstlight.__version__}).encode() + b"\n")
