"""Lines that came as JSON, as the engine would have printed them. Pure."""

import re
from typing import Any

import msgspec

from firstlight.engines.stamps import CALENDAR

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


def unwrapped(raw: str) -> list[str]:
    """A line wrapped as JSON by a container runtime, by journald or by a JSON logging configuration, as the engine would have printed it.

    A message of several lines and its traceback are as many lines. Empty for what is no such line.
    """
    try:
        record = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    if not isinstance(record, dict):
        return []
    if isinstance(log := record.get("log"), str):
        return log.rstrip("\r\n").split("\n")
    if (entry := _journal_entry(record)) is not None:
        return entry.split("\n")
    message = record.get("message") or record.get("msg")
    if not isinstance(message, str):
        return []
    trace = record.get("exc_info") or record.get("stack_info")
    header, text = _header_of(record), f"{message}\n{trace}" if isinstance(trace, str) else message
    return [f"{header} {line}" for line in text.split("\n")]


def _header_of(record: dict[str, Any]) -> str:
    """`(EngineCore pid=7) INFO 2026-10-12 08:00:05,123 [core.py:9]` of a JSON record."""
    name = record.get("vllm_process_name") or record.get("processName") or "pid"
    name = "APIServer" if name == "MainProcess" else name
    pid, logger = record.get("process"), str(record.get("name") or "log").rsplit(".", 1)[-1]
    level, time = record.get("levelname") or record.get("level") or "INFO", record.get("asctime")
    source = f"{record.get('filename', f'{logger}.py')}:{record.get('lineno', 0)}"
    prefix = f"({name} pid={pid}) " if isinstance(pid, int) else ""
    stamp = f" {time}" if isinstance(time, str) and CALENDAR.fullmatch(time) else ""
    return f"{prefix}{str(level).upper()}{stamp} [{source}]"


def _journal_entry(record: dict[str, Any]) -> str | None:
    """The line in `journalctl -o json`: text, or bytes as numbers where it holds colours."""
    entry = record.get("MESSAGE")
    if isinstance(entry, list) and all(isinstance(b, int) and 0 <= b < 256 for b in entry):
        entry = ANSI.sub("", bytes(entry).decode("utf-8", "replace"))
    return entry if isinstance(entry, str) else None
