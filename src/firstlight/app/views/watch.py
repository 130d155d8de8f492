"""How `watch` is shown: a line a phase, the figures that it brought, the progress, the ETA and the verdict on silence."""

import sys

import click
import msgspec

from firstlight.app.output import Glyphs, glyphs
from firstlight.core.events import Event
from firstlight.core.figures import Figure
from firstlight.core.units import format_bytes, format_seconds
from firstlight.watch.follow import Beat
from firstlight.watch.stall import Stall
from firstlight.watch.state import EngineLog, LogEvent

_LONG_FIELDS = frozenset({"args", "config"})
_SHOWN_FIGURES = (
    "engine_version", "architecture", "max_model_len", "attention_backend", "moe_backend", "checkpoint_gib", "weights_gib", "load_seconds",
    "compile_seconds", "kv_cache_gib", "kv_tokens", "max_concurrency", "graphs_gib", "capture_seconds", "engine_init_seconds", "address",
)  # fmt: skip
_SOON_SECONDS = 30.0
ENDED_BADLY = frozenset({"failed", "stopping", "stopped"})


class WatchView:
    """Writes to stderr; on a terminal the last line is live (progress, ETA), elsewhere there is a heartbeat every 30 s."""

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.marks: Glyphs = glyphs(sys.stderr)
        self._started: float | None = None
        self._last_beat = 0.0
        self._open = False
        self._verdict: Stall | None = None
        self._errors = 0
        self._waits: list[int] = []
        self._wait_told: tuple[str, Stall] | None = None
        self._told: dict[str, object] = {}

    def event(self, event: LogEvent) -> None:
        self._started = self._started if self._started is not None else event.time
        if self._waits and event.kind in ("phase", "progress", "ready"):
            self._went_on(event)
        if event.kind == "phase":
            self._phase(event)
        elif event.kind == "figure":
            self._figure(event)
        elif event.kind == "error" and self._errors < 5:
            self._errors += 1
            self._line(f"  {self.marks.fail} line {event.line}{_at(event.worker)}: {event.data['text'][:160]}", "red")
        elif event.kind == "died":
            self._line(f"  {self.marks.fail} line {event.line}{_at(event.worker)}: a process died", "red")
        elif event.kind == "waiting":
            self._waits.append(event.line)
        elif event.kind == "note":
            self._line(f"  {self.marks.note} {event.data['text']}")

    def beat(self, beat: Beat) -> None:
        text = beat_line(beat, self.marks)
        if self.live:
            click.echo(f"\r\x1b[2K  {text}", err=True, nl=False)
            self._open = True
        elif beat.time - self._last_beat >= _SOON_SECONDS:
            self._last_beat = beat.time
            click.echo(f"  {text}", err=True)
        if beat.verdict.state is not self._verdict and beat.verdict.state is Stall.STALLED:
            self._stalled(beat)
        if beat.wait is not None and self._wait_told != (beat.phase, beat.verdict.state):
            self._wait_told = (beat.phase, beat.verdict.state)
            self._line(f"  {self.marks.note} {beat.wait}")
        self._verdict = beat.verdict.state

    def _stalled(self, beat: Beat) -> None:
        self._line(f"  {self.marks.warn} stalled: {beat.verdict.because}", "yellow")
        for fact in beat.verdict.looked_at:
            self._line(f"      {fact}")
        for line in (beat.stacks or "").splitlines():
            self._line(f"      {line}")

    def _went_on(self, event: LogEvent) -> None:
        """Something came after the waits of a log that is read: they were harmless. A failure after them is no such proof."""
        if event.data.get("name") not in ENDED_BADLY and self._wait_told is None:
            self._line(f"  {self.marks.note} {told_waits(self._waits)}: harmless, the start went on")
            self._waits = []

    def _phase(self, event: LogEvent) -> None:
        name = event.data["name"]
        glyph, colour = (self.marks.fail, "red") if name == "failed" else (self.marks.ok if name == "ready" else self.marks.run, None)
        after = format_seconds(max(event.time - (self._started or event.time), 0.0))
        self._line(f"{glyph} {name:16} line {event.line:<8} {after}", colour)

    def _figure(self, event: LogEvent) -> None:
        shown = [f"{k} {v}" for k, v in event.data.items() if k in _SHOWN_FIGURES and self._told.get(k) != v]
        self._told.update(event.data)
        if shown:
            self._line(f"    {', '.join(shown)}")

    def _line(self, text: str, colour: str | None = None) -> None:
        if self._open:
            click.echo("\r\x1b[2K", err=True, nl=False)
            self._open = False
        click.secho(text, fg=colour, err=True)

    def close(self, log: EngineLog) -> None:
        """The summary: where it ended, what was harmless."""
        if self._waits and self._wait_told is None:
            self._line(f"  {self.marks.warn} {told_waits(self._waits)}: a hang, unless it still moves; nothing came after", "yellow")
        if log.benign:
            harmless = ", ".join(f"{code} {count}x" for code, count in sorted(log.benign.items()))
            self._line(f"  {self.marks.note} harmless: {harmless}")
        behind = [f"{name} {phase}" for name, phase in sorted(log.workers.items()) if name and phase != log.phase]
        if log.phase not in ("ready", "serving", "stopped") and behind:
            self._line(f"  {self.marks.note} processes: {', '.join(behind[:8])}")
        if log.uncaught_line is not None and log.phase not in ("ready", "serving"):
            self._line(
                f"  {self.marks.fail} line {log.uncaught_line}: a process ended with an error; `firstlight diagnose` names the cause", "red"
            )
        self._line(f"{log.engine} {log.version or ''}: {log.phase} after {log.lines} lines".replace("  ", " "))


def told_waits(lines: list[int]) -> str:
    times = f"{len(lines)} times, " if len(lines) > 1 else ""
    return f"one process waited for another ({times}first in line {lines[0]})"


def beat_line(beat: Beat, marks: Glyphs) -> str:
    """`loading  14/46 shards  about 4 min 10 s left (3 min to 6 min): 14 of 46 shards at 9.1 s each`."""
    count = f"  {bar(beat.done, beat.total, marks)} {_counted(beat)}" if beat.total else ""
    state = "" if beat.verdict.state is Stall.MOVING else f"  {beat.verdict.state}"
    return f"{beat.phase}{count}{eta_text(beat.remaining)}{state}"


def _counted(beat: Beat) -> str:
    if beat.unit == "bytes":
        return f"{format_bytes(beat.done or 0, digits=1)} of {format_bytes(beat.total or 0, digits=1)}"
    return f"{beat.done}/{beat.total} {beat.unit}"


def bar(done: int | None, total: int, marks: Glyphs, width: int = 16) -> str:
    filled = min(width * (done or 0) // total, width)
    return marks.full * filled + marks.empty * (width - filled)


def eta_text(figure: Figure) -> str:
    if figure.mid is None or figure.low is None or figure.high is None:
        return ""
    span = f"{format_seconds(figure.low)} to {format_seconds(figure.high)}"
    return f"  about {format_seconds(figure.mid)} to ready ({span}; {figure.because})"


def _at(worker: str | None) -> str:
    return f" [{worker}]" if worker else ""


def as_event(event: LogEvent, seq: int, run: str) -> Event:
    """A log's event as an event of the one stream that every surface reads."""
    data = {k: v for k, v in event.data.items() if k not in _LONG_FIELDS}
    return Event(
        seq=seq,
        time=event.time,
        run=run,
        stage="watch",
        kind=event.kind,
        data={"line": event.line, "phase": event.phase, "worker": event.worker, **data},
    )


def beat_event(beat: Beat, seq: int, run: str) -> Event:
    """A beat as a heartbeat event with its ETA and verdict."""
    data = {"phase": beat.phase, "remaining": msgspec.to_builtins(beat.remaining), "verdict": msgspec.to_builtins(beat.verdict)}
    return Event(
        seq=seq,
        time=beat.time,
        run=run,
        stage="watch",
        kind="heartbeat",
        data={**data, "done": beat.done, "total": beat.total, "unit": beat.unit, "wait": beat.wait},
    )
