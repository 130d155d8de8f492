"""Which port a start gets: looked for when it starts, claimed against every other firstlight on the host, and recorded in the run."""

import fcntl
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from firstlight.app.session import Session
from firstlight.core.errors import HostError
from firstlight.core.ids import slug
from firstlight.core.ports import Host
from firstlight.core.run import TERMINAL
from firstlight.launch.supervisor.portclaim import CHOSEN, claim_port, claimed_ports
from firstlight.probe.facts.network import parse_ports

FIRST_PORT = 8000
REHEARSAL_PORTS = range(9000, 10000)


def free_port(session: Session) -> int:
    """The first port from 8000 on that nothing on the host listens at now and no firstlight of any user has claimed.

    It is ours until `release_port`, by when the supervisor has a claim of its own. A later attempt begins at a place of its own:
    whoever took the first port may be looking for the next one too.
    """
    release_port(session)
    taken = _listening(session) | _claimed(session)
    first = FIRST_PORT if session.attempt == 1 else FIRST_PORT + 1 + random.randrange(1000)
    return next(p for p in range(first, 65536) if p not in taken and _ours(session, p))


def _ours(session: Session, port: int) -> bool:
    """Whether this process has the port now. On another host only the supervisor can claim one."""
    if not session.host.is_local:
        return True
    session.port_claim = claim_port(port, CHOSEN)
    return session.port_claim is not None


def release_port(session: Session) -> None:
    if session.port_claim is not None:
        session.port_claim.release()
        session.port_claim = None


def rehearsal_port(session: Session, *, tried: Collection[int] = ()) -> int:
    """A free port away from those of launches: a rehearsal must not take the port that a launch has chosen a moment ago."""
    taken = _listening(session) | _claimed(session) | set(tried)
    return random.choice([p for p in REHEARSAL_PORTS if p not in taken] or [p for p in range(10000, 65536) if p not in taken])


def _listening(session: Session) -> set[int]:
    """Ports of the host that somebody listens at, now and when it was probed, or that another firstlight has claimed."""
    return listening_now(session.host) | _under_claim(session.host) | set(session.machine.ports_in_use if session.machine else [])


def listening_now(host: Host) -> set[int]:
    """Ports that somebody listens at in this moment; none where the host does not show them."""
    found: set[int] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(HostError):
            found |= set(parse_ports(host.read(path).decode("ascii", "replace")))
    return found


def _under_claim(host: Host) -> set[int]:
    with suppress(HostError):
        return claimed_ports(host.read("/proc/net/unix"))
    return set()


def _claimed(session: Session) -> set[int]:
    runs = session.store.scan()[0]
    others = [r for f, r in runs if r.host == session.host.name and (session.folder is None or f.path != session.folder.path)]
    return {urlsplit(r.endpoint.base_url).port or 0 for r in others if r.endpoint and r.state not in TERMINAL}


@contextmanager
def choosing(session: Session) -> Iterator[None]:
    """One `up` at a time chooses a port of the host and records it: two at once would choose the same."""
    path = session.store.root.parent / "locks" / f"ports-of-{slug(session.host.name)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = open(path, "ab")  # noqa: SIM115 - held for the whole block
    except OSError:
        yield  # on a full disk the supervisor still refuses a port that is taken
        return
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
