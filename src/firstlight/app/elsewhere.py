"""What is different when a run's host is not this machine: its own places, a way to its endpoint, models and keys that move there."""

import atexit
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec

from firstlight.app.places import cache_folder, config_folder, data_folder, state_folder
from firstlight.core.errors import FirstlightError, HostError
from firstlight.core.ports import Host
from firstlight.core.run import Endpoint, LaunchSpec
from firstlight.probe.forward import Forward, remote_target
from firstlight.probe.ssh import SshHost


class Places(NamedTuple):
    """XDG places of a host, for whoever we are there."""

    state: str
    cache: str
    data: str
    config: str


_known: dict[str, Places] = {}


def places_of(host: Host) -> Places:
    """Raises HostError; FirstlightError `no-home` where the login has no home folder."""
    if host.is_local:
        return Places(str(state_folder()), str(cache_folder()), str(data_folder()), str(config_folder()))
    if host.name not in _known:
        env = host.environ()
        home = env.get("HOME", "")
        _known[host.name] = Places(*(_xdg(env.get(name, ""), home, default) for name, default in _XDG))
    return _known[host.name]


_XDG = (
    ("XDG_STATE_HOME", ".local/state"),
    ("XDG_CACHE_HOME", ".cache"),
    ("XDG_DATA_HOME", ".local/share"),
    ("XDG_CONFIG_HOME", ".config"),
)


def _xdg(value: str, home: str, default: str) -> str:
    base = value if value.startswith("/") else posixpath.join(home, default)
    if not base.startswith("/"):
        raise FirstlightError("no-home", "the login on that host has no home folder", evidence=(f"HOME={home!r}",))
    return posixpath.join(base, "firstlight")


def hub_environ(host: Host) -> Mapping[str, str]:
    """A host's own environment (its caches), and from here how the hub is reached: headers are read from this machine."""
    env = host.environ()
    return env if host.is_local else {**env, **{k: v for k, v in os.environ.items() if k in _HUB}}


_HUB = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE")


def only_here(model: str, host: Host) -> str | None:
    """The path of a model that this machine has and `host` has not, and so must be copied there. None: it is read where it runs."""
    path = os.path.abspath(os.path.expanduser(model))
    if host.is_local or not os.path.exists(path):
        return None
    try:
        return path if host.stat(model) is None else None
    except HostError as e:
        if e.code not in ("permission-denied", "not-a-folder"):
            raise
        return path  # this machine's own folders may be closed ones there


def folder_there(host: Host, run: str) -> str | None:
    """Where the run's folder is on its own host; None: the same path as here."""
    return None if host.is_local else posixpath.join(places_of(host).state, "runs", run)


class Reached(NamedTuple):
    """lost: whether the way to the endpoint was lost since."""

    endpoint: Endpoint
    lost: Callable[[], bool]


@contextmanager
def reached(endpoint: Endpoint, host: Host) -> Iterator[Reached]:
    """The endpoint as it is reached from here: through ssh where it listens at another host's loopback. Raises HostError."""
    if host.is_local:
        yield Reached(endpoint, lambda: False)
        return
    url = urlsplit(endpoint.base_url)
    assert isinstance(host, SshHost)
    forward = Forward(host, url.port or 80, url.hostname or "127.0.0.1")
    with forward as local:
        near = msgspec.structs.replace(endpoint, base_url=urlunsplit(url._replace(netloc=f"127.0.0.1:{local}")))
        yield Reached(near, forward.lost)


def reached_for_good(endpoint: Endpoint, host: Host) -> Endpoint:
    """The same for as long as this process lives."""
    way = reached(endpoint, host)
    near = way.__enter__().endpoint
    atexit.register(way.__exit__, None, None, None)
    return near


def tunnel_line(endpoint: Endpoint, host: Host) -> str | None:
    """The command that brings the endpoint to this machine, to paste; None where it is here already."""
    if host.is_local:
        return None
    port = urlsplit(endpoint.base_url).port
    return f"ssh -N -L {port}:127.0.0.1:{port} {remote_target(host.name)}"


def shipped_key(folder: str, name: str) -> str:
    """Where an attempt's folder on another host has the key for the variable `name`."""
    return posixpath.join(folder, f"{name.lower()}.key")


def ship_key(host: Host, spec: LaunchSpec, folder: str) -> LaunchSpec:
    """The key's file goes to the host, readable by its owner alone; it travels on standard input. Raises FirstlightError."""
    if host.is_local or not spec.secret_files:
        return spec
    shipped = {}
    for name, path in spec.secret_files.items():
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as e:
            raise FirstlightError("api-key-unreadable", "the key file cannot be read", evidence=(f"{path}: {e.strerror}",)) from None
        shipped[name] = shipped_key(folder, name)
        host.write(shipped[name], data, 0o600)
    return msgspec.structs.replace(spec, secret_files=shipped)
