"""Shared by sources that speak HTTP: what a status means, and a body as the transfer wants it."""

import re
import time
from collections.abc import Mapping
from email.message import Message
from email.utils import parsedate_to_datetime

from firstlight.core.errors import HostError
from firstlight.fetch.source import Changed, RemoteFile, Retry
from firstlight.fetch.wire import Answer, Wire, WireError

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524})
MAX_WAIT = 300.0


class HttpBody:
    """A response's body with the place and the total that its headers tell."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.ranged = answer.status == 206
        self.start, self.total = content_range(answer.status, answer.headers)
        self.etag = etag(answer.headers)

    def readinto(self, view: memoryview) -> int:
        try:
            return self._answer.readinto(view)
        except WireError as e:
            raise Retry(str(e)) from None

    def close(self) -> None:
        self._answer.close()

    def abort(self) -> None:
        self._answer.abort()


def ask(wire: Wire, method: str, url: str, headers: Mapping[str, str] | None = None) -> Answer:
    """One request; a broken connection or a busy server is Retry. Other statuses are the caller's to judge."""
    try:
        answer = wire.request(method, url, headers)
    except WireError as e:
        raise Retry(str(e)) from None
    if answer.status in BUSY:
        after = retry_after(answer.headers, time.time())
        answer.close()
        slower = answer.status in (429, 503, 509)
        raise Retry(f"the server answered {answer.status}", after=after, slower=slower)
    return answer


def open_range(wire: Wire, file: RemoteFile, url: str, start: int, end: int | None, headers: Mapping[str, str]) -> Answer:
    """GET of a range; the answer's status is 200, 206, or one the caller must judge. Raises Retry, Changed (416, or another etag)."""
    last = "" if end is None else end - 1
    answer = ask(wire, "GET", url, {**headers, "Range": f"bytes={start}-{last}"})
    if answer.status == 416 and not (start == 0 and file.size in (0, None)):
        answer.close()
        raise Changed(f"{file.name} is shorter than it was")
    if answer.status in (200, 206) and (answer.headers.get("Content-Encoding") or "identity") != "identity":
        answer.close()
        raise HostError("encoded-answer", f"{file.name} arrives compressed although that was declined", hint="use another mirror or proxy")
    return answer


def content_range(status: int, headers: Message) -> tuple[int, int | None]:
    """Where the body starts and how large the whole file is."""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "").strip()) if status == 206 else None
    if match:
        return int(match[1]), int(match[2]) if match[2] != "*" else None
    length = headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() and status == 200 else None


def etag(headers: Message) -> str | None:
    """The entity tag without quotes and weak mark; the time of the last change where a server has no tags."""
    value = headers.get("X-Linked-Etag") or headers.get("ETag") or headers.get("Last-Modified")
    return value.removeprefix("W/").strip('"') if value else None


def retry_after(headers: Message, now: float) -> float | None:
    """Seconds that the server asks to wait (`Retry-After`, else `RateLimit: …;t=…`); None when it does not say.

    now: used where the server does not tell its own time. A clock that is wrong here must not make us hammer or sleep.
    """
    value = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return min(float(value), MAX_WAIT)
    if value:
        until, its_now = _timestamp(value), _timestamp(headers.get("Date", ""))
        return None if until is None else min(max(0.0, until - (its_now or now)), MAX_WAIT)
    match = re.search(r"\bt=(\d+)", headers.get("RateLimit", ""))
    return min(float(match[1]), MAX_WAIT) if match else None


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
