"""How long until ready, as an interval: bytes over a measured rate, the shard rate, earlier starts, catalog defaults. Pure."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from firstlight.catalog.milestones import PHASES, RANK, Expected, load_milestones
from firstlight.core.figures import Figure, Rung
from firstlight.watch.state import EngineLog, LogEvent

START_PHASES = PHASES[: RANK["ready"]]
_STEPS_KEPT = 64


class Span(Struct, frozen=True, kw_only=True):
    """Seconds that something takes, and why this is believed."""

    low: float
    mid: float
    high: float
    because: str
    measured: bool = False

    def minus(self, seconds: float) -> "Span":
        """What is left of it after `seconds`; a span that is over keeps a little of its high end, for it is not over yet."""
        left = max(self.mid - seconds, 0.0)
        late = max(self.high - seconds, self.high * 0.1 if self.mid > seconds else self.mid * 0.5)
        return Span(
            low=max(self.low - seconds, 0.0), mid=left or late / 2, high=max(late, left), because=self.because, measured=self.measured
        )


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

        The phases' deviations add as independent ones do: not every phase takes its longest in one start.
        """
        if RANK[log.phase] >= RANK["ready"]:
            return Figure()
        spent = now - (log.phase_since if log.phase_since is not None else now)
        spans = [self._current(log, spent, now)]
        spans += [self._whole(name) for name in START_PHASES[RANK[log.phase] + 1 :] if self._happens(name, log)]
        known = [s for s in spans if s is not None]
        if not known or spans[0] is None:
            return Figure()
        mid = sum(s.mid for s in known)
        below = sum((s.mid - s.low) ** 2 for s in known) ** 0.5
        above = sum((s.high - s.mid) ** 2 for s in known) ** 0.5
        return Figure(
            low=round(max(mid - below, sum(s.low for s in known)), 1),
            mid=round(mid, 1),
            high=round(mid + above, 1),
            rung=Rung.MEASURED if known[0].measured else Rung.COMPUTED,
            because=known[0].because,
        )

    def _happens(self, phase: str, log: EngineLog) -> bool:
        """An eager start compiles and captures nothing; earlier starts know which phases there are."""
        if self._history:
            return any(phase in past for past in self._history)
        eager = "'enforce_eager': True" in str(log.fields.get("args", "")) or "enforce_eager=True" in str(log.fields.get("config", ""))
        return phase in self._expected and not (eager and phase in ("compiling", "capturing"))

    def _current(self, log: EngineLog, spent: float, now: float) -> Span | None:
        if log.total and (paced := self._pace.rest(float(log.total), now, log.unit or "steps")):
            return paced
        if log.phase == "loading" and self.checkpoint_bytes and (paced := self._read.rest(self.checkpoint_bytes / 1e9, now, "GB")):
            return paced
        whole = self._whole(log.phase)
        return whole.minus(spent) if whole else None

    def _whole(self, phase: str) -> Span | None:
        past = [float(h[phase]) for h in self._history if phase in h]
        if past:
            return _from_history(past)
        if phase == "loading" and self.checkpoint_bytes and self._rate:
            seconds = self.checkpoint_bytes / self._rate
            return Span(
                low=seconds * 0.5,
                mid=seconds,
                high=seconds * 2,
                because=f"{self.checkpoint_bytes / 1e9:.1f} GB at {self._rate / 1e9:.2f} GB/s",
            )
        return _from_catalog(self._expected[phase]) if phase in self._expected else None


def _from_history(past: list[float]) -> Span:
    spread = 0.5 if len(past) == 1 else 0.2
    return Span(
        low=min(past) * (1 - spread),
        mid=sorted(past)[len(past) // 2],
        high=max(past) * (1 + spread),
        because=f"{len(past)} earlier start{'s' if len(past) > 1 else ''} on this machine",
    )


def _from_catalog(expected: Expected) -> Span:
    return Span(low=expected.low, mid=expected.mid, high=expected.high, because="what this phase usually takes")


def phase_seconds(log: EngineLog) -> dict[str, float]:
    """How long each phase of a start took, for the history of the next one."""
    names = [name for name in log.phase_times if RANK[name] <= RANK["ready"]]
    return {a: round(log.phase_times[b] - log.phase_times[a], 3) for a, b in pairwise(names)}
