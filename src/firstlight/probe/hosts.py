"""Names of hosts: `local` or `ssh://[user@]host[:port]`."""

from collections.abc import Callable

from firstlight.core.errors import HostError, UsageError
from firstlight.core.ports import Host
from firstlight.probe.cuts import PATIENCE_SECONDS
from firstlight.probe.local import LocalHost


def open_host(name: str, *, patience: float = PATIENCE_SECONDS, on_lost: Callable[[HostError], None] | None = None) -> Host:
    """The host behind a name; nothing is contacted yet. Raises UsageError `unknown-host`.

    patience, on_lost: how long a connection that broke is made again, and who is told; see SshHost.
    """
    if name in ("local", "localhost", ""):
        return LocalHost()
    if name.startswith("ssh://"):
        from firstlight.probe.ssh import SshHost

        return SshHost(name, patience=patience, on_lost=on_lost)
    raise UsageError(
        "unknown-host", f"{name} is not a host", evidence=(f"--host {name}",), hint="use `local` or `ssh://[user@]host[:port]`"
    )
