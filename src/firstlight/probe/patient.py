"""Following a file on a host whose connection comes and goes: what was cut is asked again, so that reading goes on from its byte."""

from collections.abc import Callable

from firstlight.core.errors import HostError
from firstlight.core.ports import Host
from firstlight.probe.hosts import open_host

PATIENCE_SECONDS = 600.0


def open_patient_host(name: str, on_lost: Callable[[HostError], None] | None = None) -> Host:
    """As `open_host`, for who reads a file to its end however often the way there breaks: ten minutes instead of two.

    on_lost: told once per loss. A host that was never reached fails at once, as always. Raises UsageError `unknown-host`.
    """
    return open_host(name, patience=PATIENCE_SECONDS, on_lost=on_lost)
