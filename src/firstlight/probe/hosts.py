"""Names of hosts: `local` or `ssh://[user@]host[:port]`."""

from firstlight.core.errors import UsageError
from firstlight.core.ports import Host
from firstlight.probe.local import LocalHost


def open_host(name: str) -> Host:
    """The host behind a name; nothing is contacted yet. Raises UsageError `unknown-host`."""
    if name in ("local", "localhost", ""):
        return LocalHost()
    if name.startswith("ssh://"):
        from firstlight.probe.ssh import SshHost

        return SshHost(name)
    raise UsageError(
        "unknown-host", f"{name} is not a host", evidence=(f"--host {name}",), hint="use `local` or `ssh://[user@]host[:port]`"
    )
