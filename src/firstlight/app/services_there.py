"""`service` on another host: the verified run's documents and firstlight itself are brought there, and what it does here it does there."""

import json
import posixpath
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import firstlight
from firstlight.app.carrying import Carried, carry, known_there
from firstlight.app.consent import Consent
from firstlight.app.elsewhere import places_of
from firstlight.app.remotecode import RECORD
from firstlight.app.services import STRUCTS
from firstlight.app.servicing import Wanted, verified_run
from firstlight.app.store import RunFolder
from firstlight.ask.lasting import run_lasting
from firstlight.core.errors import Exit, FirstlightError, UsageError
from firstlight.core.ids import slug
from firstlight.core.ports import Completed, Host
from firstlight.core.run import LaunchSpec, Run
from firstlight.core.schema import decode
from firstlight.deploy.systemd import UnitState
from firstlight.probe.hosts import open_host

DOCUMENTS = ("run.json", *STRUCTS, "phases.json", RECORD)
LONG_SECONDS = 4 * 3600.0
Say = Callable[[str], None]


def run_elsewhere(wanted: Wanted, host: str | None) -> bool:
    """Whether the run that becomes a service is on another host. Raises UsageError `run-on-another-host`."""
    run = verified_run(wanted.ref)[1]
    if host not in (None, run.host):
        evidence = (f"run {run.id}", f"--host {host}")
        hint = f"firstlight up {run.model} --host {host} --name {run.name}, and then make a service of that run"
        raise UsageError("run-on-another-host", f"{run.name!r} was verified on {run.host}", evidence=evidence, hint=hint)
    return run.host != "local"


def install_there(wanted: Wanted, scope: str | None, consent: Consent, allowed: frozenset[str], say: Say) -> UnitState:
    """`service install` on the run's own host. Questions that it asks there are asked here. Raises FirstlightError."""
    folder, run = verified_run(wanted.ref)
    host = open_host(run.host)
    launch = folder.load(LaunchSpec, "launch.json")
    there = carry(host, consent, say, also=launch.argv[0])
    name = slug(wanted.name or run.name)
    place = _documents(host, folder, run, there, name)
    words = ["service", "install", place, "--name", name, "--watchdog", str(wanted.watchdog_seconds), "-o", "json"]
    words += [f"--{scope}"] if scope else []
    words += [] if wanted.start else ["--no-start"]
    words += [w for code in sorted(wanted.ignore) for w in ("--ignore", code)] + (["--yes"] if consent.yes else [])
    said = set(allowed)
    while True:
        done = _run(host, there, [*words, *(w for a in sorted(said) for w in ("--allow", a))], say)
        if done.returncode != Exit.CONSENT_MISSING:
            break
        said.add(_asked(done, consent))
    if done.returncode != Exit.OK:
        raise _error(done)
    return decode(done.stdout, UnitState)


def _documents(host: Host, folder: RunFolder, run: Run, there: Carried, name: str) -> str:
    """The run's folder on its host gets what this machine knows of it, as if it had been started there. No key is among it."""
    place = run.host_folder or posixpath.join(places_of(host).state, "runs", run.id)
    key = posixpath.join(places_of(host).config, "keys", f"{name}.key")
    for document in DOCUMENTS:
        if (folder.path / document).exists():
            data = (folder.path / document).read_bytes()
            text = data if document == RECORD else _theirs(data, run, place, key, there)
            host.write(posixpath.join(place, document), text, 0o600)
    for path in folder.load(LaunchSpec, "launch.json").secret_files.values():
        host.write(key, Path(path).read_bytes(), 0o600)
    return place


def _theirs(data: bytes, run: Run, place: str, key: str, there: Carried) -> bytes:
    """The host is its own `local`; a key is in a file there; our runner scripts are those that were brought."""
    document = json.loads(data)
    ours, brought = str(Path(firstlight.__file__).parent), posixpath.join(there.folder, "firstlight")
    changed = {"host": "local", "host_folder": None} if document.get("kind") == "Run" else {}
    return json.dumps(_replaced({**document, **changed}, run, place, key, ours, brought), ensure_ascii=False, indent=2).encode() + b"\n"


def _replaced(value: Any, run: Run, place: str, key: str, ours: str, brought: str) -> Any:
    if isinstance(value, list):
        return [_replaced(v, run, place, key, ours, brought) for v in value]
    if isinstance(value, dict):
        shown = {k: _replaced(v, run, place, key, ours, brought) for k, v in value.items()}
        shown |= {"api_key_file": key} if shown.get("api_key_file") else {}
        shown |= {"secret_files": dict.fromkeys(shown["secret_files"], key)} if shown.get("secret_files") else {}
        return shown
    if value == run.host:
        return "local"
    if value == run.folder:
        return place
    return brought + value[len(ours) :] if isinstance(value, str) and value.startswith(f"{ours}/") else value


def _asked(done: Completed, consent: Consent) -> str:
    """The question that was met there, asked here; its name when the answer is yes. Raises ConsentError."""
    error = _error(done)
    found = re.search(r"--allow ([\w-]+)", error.hint or "")
    if found is None:
        raise error
    consent.require(found[1], error.message, evidence=error.evidence)
    return found[1]


def _run(host: Host, there: Carried, words: list[str], say: Say, *, seconds: float = LONG_SECONDS) -> Completed:
    """Outlives lost connections; what it says meanwhile is said here."""
    argv = ["env", f"XDG_RUNTIME_DIR={_runtime(host)}", "CI=1", *there.argv(*words)]
    return run_lasting(host, argv, scratch=posixpath.join(places_of(host).cache, "steps"), timeout=seconds, on_line=say)


def _runtime(host: Host) -> str:
    """A login over ssh without PAM has none, and the user's own manager is there all the same."""
    return host.environ().get("XDG_RUNTIME_DIR") or f"/run/user/{host.run(['id', '-u']).text.strip()}"


def _error(done: Completed) -> FirstlightError:
    try:
        found = json.loads(done.stdout)
        code = Exit(done.returncode)
        return FirstlightError(
            found["code"], found["message"], evidence=tuple(found.get("evidence") or ()), hint=found.get("hint"), exit_code=code
        )
    except (ValueError, KeyError, TypeError):
        lines = tuple(done.stderr.decode("utf-8", "replace").strip().splitlines()[-4:])
        return FirstlightError("failed-there", "firstlight did not do it on that host", evidence=(f"exit status {done.returncode}", *lines))


def brought(host: Host) -> Carried:
    """Raises UsageError `service-not-found` where nothing was ever brought."""
    found = known_there(host)
    if found is None:
        hint = f"firstlight up MODEL --host {host.name}, then firstlight service install RUN"
        raise UsageError("service-not-found", f"no service was installed on {host.name} from anywhere", hint=hint)
    return found


def relay(host_name: str, words: list[str], say: Say) -> int:
    """Another part of `service` on that host; its output and exit code are ours."""
    host = open_host(host_name)
    done = _run(host, brought(host), ["service", *words], say)
    sys.stdout.buffer.write(done.stdout)
    sys.stdout.flush()
    return done.returncode


def log_there(host_name: str, name: str) -> tuple[Host, str]:
    """The engine's log of the service's latest start. Raises UsageError `service-not-found`."""
    from firstlight.probe.patient import open_patient_host

    host = open_patient_host(host_name)
    done = host.run(brought(host).argv("get", "runs", "--all", "-o", "json"), timeout=60)
    rows = [r for r in json.loads(done.stdout or b"{}").get("items", []) if r["name"] == slug(name)]
    if not rows:
        hint = f"firstlight service list --host {host.name}"
        raise UsageError("service-not-found", f"no service is called {name!r} on {host.name}", hint=hint)
    return host, f"{rows[0]['folder']}/attempts/{rows[0]['attempt']}/engine.log"
