"""The one stream that every surface reads: CLI, TUI, web, JSON and metrics agree by construction."""

from typing import Any

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True):
    """seq: grows by one within a run. time: Unix seconds. stage: a stage of the pipeline.

    kind: `stage-started`, `stage-finished`, `stage-failed`, `progress` (done, total, unit), `phase` (name, worker), `figure`
    (name, value), `line` (text, worker), `finding`, `state`, `heartbeat`, `ready`, `died`, `question`, `log-benign`, …
    """

    seq: int
    time: float
    run: str
    stage: str
    kind: str
    data: dict[str, Any] = {}
