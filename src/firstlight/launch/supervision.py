"""How a run is to be supervised, and what its supervisor says: the words of the client."""

from typing import Any

from msgspec import Struct

from firstlight.core.run import ProcessRef
from firstlight.launch.headstart import HeadStart

FINAL = frozenset({"stopped", "failed"})


class Restart(Struct, frozen=True, kw_only=True):
    """policy: `never` | `on-failure` (an engine that had been ready). max_restarts within window_seconds, then it is a crash loop."""

    policy: str = "never"
    max_restarts: int = 5
    window_seconds: float = 600.0
    backoff_seconds: float = 1.0
    longest_backoff_seconds: float = 60.0
    also_before_ready: bool = False


class Alive(Struct, frozen=True, kw_only=True):
    """Tokens must advance: looked at every interval; silent with work to do for longer than patience is wedged."""

    interval_seconds: float = 30.0
    patience_seconds: float = 120.0


class Options(Struct, frozen=True, kw_only=True):
    """How a run is supervised.

    on_event: argv run for ready, failed, died, restarted, wedged, stopping, ended, with FIRSTLIGHT_EVENT, _NAME and _DATA (JSON).
    before_restart: argv that is asked for the cause of a death: prints a JSON object whose `restart` false keeps the engine down.
    tee: the log also on the supervisor's stdout.
    held: the run ends when no client holds it any more, or none does within 15 s (a rehearsal whose `up` was killed).
    hold_grace_seconds: how long a held run waits for the next holder: a connection that was cut comes back, on one machine none is cut.
    head_start: files that are read into the page cache while the engine imports.
    on_supervisor_death: `stop` (the engine gets its stop signal from the kernel) or `keep` (the next command adopts it).
    """

    restart: Restart = Restart()
    liveness: Alive | None = None
    on_event: list[str] | None = None
    before_restart: list[str] | None = None
    on_supervisor_death: str = "stop"
    log_max_bytes: int = 256 << 20
    log_keep: int = 3
    tee: bool = False
    held: bool = False
    hold_grace_seconds: float = 0.0
    head_start: HeadStart | None = None


class SupervisorEvent(Struct, frozen=True, kw_only=True):
    """byte: where the next event starts in the event file. kind: engine-started, ready, died, restarting, stopping, ended, …"""

    byte: int
    time: float
    kind: str
    data: dict[str, Any] = {}


class SupervisorStatus(Struct, frozen=True, kw_only=True):
    """What the supervisor says, or its last record where it is gone (`answering` is False).

    state: starting | ready | stopping | restarting | stopped | failed. exit: the engine's last end, with the proof once swept.
    """

    run: str
    state: str
    answering: bool = True
    reason: str | None = None
    supervisor: ProcessRef | None = None
    engine: ProcessRef | None = None
    port: int = 0
    ready_seconds: float | None = None
    seconds: float | None = None
    restarts: int = 0
    health: dict[str, Any] = {}
    log: dict[str, Any] = {}
    socket: str | None = None
    exit: dict[str, Any] | None = None

    @property
    def over(self) -> bool:
        return self.state in FINAL
