"""How long until ready, as an interval: bytes over a measured rate, the shard rate, earlier starts, catalog defaults. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct, structs

from firstlight.catalog.milestones import PHASES, RANK, Expected, load_milestones
from firstlight.core.figures import Figure, Rung
from firstlight.watch.state import EngineLog, LogEvent

START_PHASES = PHASES[: RANK["ready"]]
USUAL_READ = (
    (6.0, 0.5),
    (1.0, 1.0),
    (0.15, 5.0),
)  # GB/s of a cached file, an SSD, a network file system; share of the phase's least seconds
CACHED_PHASES = frozenset({"loading", "post-load", "compiling", "warming"})
_STEPS_KEPT = 64


class Span(Struct, frozen=True, kw_only=True):
    """Seconds that something takes, and why this is believed. usual: nothing of this start, machine or model says so, only the catalog."""

    low: float
    mid: float
    high: float
    because: str
    measured: bool = False
    usual: bool = False

    def minus(self, seconds: float) -> "Span":
        """What is left of it after `seconds`; a span that is over keeps a little of its high end, for it is not over yet."""
        left = max(self.mid - seconds, 0.0)
        late = max(self.high - seconds, self.high * 0.1 if self.mid > seconds else self.mid * 0.5)
        return structs.replace(self, low=max(self.low - seconds, 0.0), mid=left or late / 2, high=max(late, left))


class Pace:
    """Steps done over time (shards, graphs, bytes): how long the rest takes, with the spread of the recent steps."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=_STEPS_KEPT)

    def add(self, time: float, done: float) -> None:
        if not self._points or done > self._points[-1][1]:
            self._points.append((time, done))

    def rest(self, total: float, now: float, unit: str) -> Span | None:
        """None until two steps were seen. The interval spans the rate of all steps and the rates of the recent halves."""
        if len(self._points) < 2:
            return None
        (t0, d0), (t1, d1) = self._points[0], self._points[-1]
        if t1 <= t0:
            return None
        overall = (d1 - d0) / (t1 - t0)
        tm, dm = self._points[len(self._points) // 2 - 1]
        recent = (d1 - dm) / (t1 - tm) if t1 > tm else overall
        left = max(total - d1, 0.0)
        since = now - t1
        guesses = sorted(max(left / rate - since, 0.0) for rate in (overall, recent) if rate > 0)
        slack = 1.0 + 1.0 / len(self._points) ** 0.5
        mid = sum(guesses) / len(guesses)
        return Span(
            low=guesses[0] / slack,
            mid=mid,
            high=guesses[-1] * slack + since,
            because=f"{d1:.4g} of {total:.4g} {unit} at {1 / overall:.2g} s each"
            if overall < 1
            else f"{d1:.4g} of {total:.4g} {unit} at {overall:.3g} a second",
            measured=True,
        )


class Eta:
    """Feeds on a log's events (and samples of bytes read); answers with the seconds left until ready.

    history: phase -> seconds of earlier starts of this plan on this machine, oldest first. checkpoint_bytes and read_bytes_per_second:
    what loading must read and how fast this disk was measured (None: unknown).
    """

    def __init__(
        self,
        engine: str = "vllm",
        *,
        history: Sequence[Mapping[str, float]] = (),
        checkpoint_bytes: int | None = None,
        read_bytes_per_second: float | None = None,
    ) -> None:
        self._expected = load_milestones(engine).expected
        self._history = list(history)
        self.checkpoint_bytes, self._rate = checkpoint_bytes, read_bytes_per_second
        self._pace, self._read = Pace(), Pace()
        self._paced: str | None = None

    def event(self, event: LogEvent) -> None:
        """Takes progress events of the phase that is running; graphs of a second mode start a new pace."""
        if event.kind == "phase":
            self._pace, self._read, self._paced = Pace(), Pace(), None
        elif event.kind == "progress":
            mode = str(event.data.get("mode") or event.data.get("what") or "")
            if mode != self._paced:
                self._pace, self._paced = Pace(), mode
            self._pace.add(event.time, float(event.data["done"]))

    def bytes_read(self, time: float, count: int) -> None:
        """Bytes of the checkpoint read so far, from a sample, for a log that is silent while it loads.

        Once all are there what is left is no reading, and their pace says nothing about it.
        """
        if self.checkpoint_bytes and count >= self.checkpoint_bytes:
            self._read = Pace()
        else:
            self._read.add(time, count / 1e9)

    def longest(self, phase: str) -> float:
        """Seconds that the phase took at most in earlier starts; 0 where none is known."""
        return max((float(h[phase]) for h in self._history if phase in h), default=0.0)

    def remaining(self, log: EngineLog, now: float) -> Figure:
        """Seconds until ready: what is left of this phase and all of the later ones. Unknown once the start has ended.

        The phases' deviations add as independent ones do: not every phase takes its longest in one start. Only the low end of what is
        merely usual adds up: a small model on a fast machine is fast in every phase.
        """
        if RANK[log.phase] >= RANK["ready"]:
            return Figure()
        spent = now - (log.phase_since if log.phase_since is not None else now)
        spans = [self._current(log, spent, now)]
        spans += [self._whole(name, log) for name in START_PHASES[RANK[log.phase] + 1 :] if self._happens(name, log)]
        known = [s for s in spans if s is not None]
        if not known or spans[0] is None:
            return Figure()
        mid = sum(s.mid for s in known)
        below = sum(s.mid - s.low for s in known if s.usual) + sum((s.mid - s.low) ** 2 for s in known if not s.usual) ** 0.5
        above = sum((s.high - s.mid) ** 2 for s in known) ** 0.5
        return Figure(
            low=round(max(mid - below, sum(s.low for s in known)), 1),
            mid=round(mid, 1),
            high=round(mid + above, 1),
            rung=Rung.MEASURED if known[0].measured else Rung.COMPUTED,
            because=known[0].because,
        )

    def _happens(self, phase: str, log: EngineLog) -> bool:
        """An eager start compiles and captures nothing, one on a processor captures nothing; earlier starts know which phases there are."""
        if self._history:
            return any(phase in past for past in self._history)
        config, args = str(log.fields.get("config", "")), str(log.fields.get("args", ""))
        eager = "'enforce_eager': True" in args or "enforce_eager=True" in config
        never = {"compiling", "capturing"} if eager else {"capturing"} if "device_config=cpu" in config else set()
        return phase in self._expected and phase not in never

    def _current(self, log: EngineLog, spent: float, now: float) -> Span | None:
        if log.total and (paced := self._pace.rest(float(log.total), now, log.unit or "steps")):
            return paced
        if log.phase == "loading" and self.checkpoint_bytes and (paced := self._read.rest(self.checkpoint_bytes / 1e9, now, "GB")):
            return paced
        whole = self._whole(log.phase, log)
        return whole.minus(spent) if whole else None

    def _whole(self, phase: str, log: EngineLog) -> Span | None:
        past = [float(h[phase]) for h in self._history if phase in h]
        if past:
            return _from_history(phase, past)
        if phase not in self._expected:
            return None
        if phase == "loading" and (bytes_ := self._checkpoint_bytes(log)) is not None:
            return _from_bytes(bytes_, self._rate, self._expected[phase])
        return _from_catalog(self._expected[phase])

    def _checkpoint_bytes(self, log: EngineLog) -> float | None:
        """As given, else as the engine said (rounded to 0.01 GiB)."""
        said = log.fields.get("checkpoint_gib")
        return self.checkpoint_bytes or (float(said) * 2**30 if isinstance(said, int | float) else None)


def _from_history(phase: str, past: list[float]) -> Span:
    """The low end is far below where a cache may have filled since (of pages, of compiled graphs), the high end a little above."""
    alone = len(past) == 1
    return Span(
        low=min(past) * (0.05 if phase in CACHED_PHASES else 0.3 if alone else 0.5),
        mid=sorted(past)[len(past) // 2],
        high=max(past) * (1.6 if alone else 1.3) + 1.0,
        because=f"{len(past)} earlier start{'' if alone else 's'} on this machine",
    )


def _from_catalog(expected: Expected) -> Span:
    return Span(low=expected.low, mid=expected.mid, high=expected.high, because="what this phase usually takes", usual=True)


def _from_bytes(count: float, rate: float | None, expected: Expected) -> Span:
    """Loading so many bytes at the measured rate of the storage, else at what disks usually give; never under the phase's own least."""
    if rate:
        seconds, because = count / rate, f"{count / 1e9:.1f} GB at {rate / 1e9:.2f} GB/s"
        return Span(
            low=min(seconds * 0.5, count / (USUAL_READ[0][0] * 1e9)),
            mid=max(seconds, expected.low),
            high=max(seconds, expected.low) * 2,
            because=because,
        )
    because = f"{count / 1e9:.1f} GB at what disks usually give"
    low, mid, high = (max(count / (gb * 1e9), expected.low * share) for gb, share in USUAL_READ)
    return Span(low=low, mid=mid, high=high, because=because, usual=True)


def phase_seconds(log: EngineLog) -> dict[str, float]:
    """How long each phase of a start took, for the history of the next one."""
    names = [name for name in log.phase_times if RANK[name] <= RANK["ready"]]
    return {a: round(log.phase_times[b] - log.phase_times[a], 3) for a, b in pairwise(names)}
