"""A small stand-in for a hub on loopback: file list, ranged downloads, redirects to another port, and every way to refuse."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """folder: the model's files. refuse: path part -> list of (status, headers) given out before the real answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refuse: dict[str, list[tuple[int, dict[str, str]]]] = {}
        self.ranges = True
        self.cut = 0  # answers that break off in the middle
        self.delay = 0.0  # seconds an answer takes at least
        self.elsewhere: str | None = None  # another origin that resolve redirects to
        self.seen: list[tuple[str, str, str | None, str | None]] = []  # method, path, range, authorization
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def requests_for(self, name: str) -> list[str | None]:
        return [r for _, path, r, _ in self.seen if path.endswith(name) and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        hub = self.hub
        with hub.lock:
            hub.seen.append(("GET", self.path, self.headers.get("range"), self.headers.get("authorization")))
            hub.at_once += 1
            hub.most_at_once = max(hub.most_at_once, hub.at_once)
        try:
            time.sleep(hub.delay)
            self._answer(hub, unquote(self.path))
        finally:
            with hub.lock:
                hub.at_once -= 1

    def _answer(self, hub: Hub, path: str) -> None:
        for part, answers in hub.refuse.items():
            if part in path and answers:
                status, headers = answers.pop(0) if answers[0][1].get("once") else answers[0]
                self._send(status, b'{"error": "no"}', headers)
                return
        if path.startswith("/api/models/") and "/tree/" in path:
            tree = [{"type": "file", "path": f["rfilename"], "size": f["size"]} for f in self._listing(hub)["siblings"]]
            self._send(200, json.dumps(tree).encode(), {"content-type": "application/json"})
            return
        if path.startswith("/api/models/"):
            self._send(200, json.dumps(self._listing(hub)).encode(), {"content-type": "application/json"})
            return
        match = re.match(r"^/[^/]+/[^/]+/resolve/[^/]+/(.+)$|^/blob/(.+)$", path)
        if match is None:
            self._send(404, b"", {})
        elif hub.elsewhere and match[1]:
            self._send(302, b"", {"location": f"{hub.elsewhere}/blob/{match[1]}"})
        else:
            self._file(hub, hub.folder / (match[1] or match[2]))

    def _listing(self, hub: Hub) -> dict[str, Any]:
        files = sorted(p for p in hub.folder.rglob("*") if p.is_file())
        return {"sha": COMMIT, "siblings": [{"rfilename": str(p.relative_to(hub.folder)), "size": p.stat().st_size} for p in files]}

    def _file(self, hub: Hub, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"", {"x-error-code": "EntryNotFound"})
            return
        size = path.stat().st_size
        wanted = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("range") or "")
        begin, end = (int(wanted[1]), min(int(wanted[2] or size - 1), size - 1)) if wanted and hub.ranges else (0, size - 1)
        self.send_response(206 if wanted and hub.ranges else 200)
        self.send_header("content-length", str(end - begin + 1))
        self.end_headers()
        with path.open("rb") as f:
            f.seek(begin)
            data = f.read(min(end - begin + 1, 64 << 20))
        with hub.lock:
            cut, hub.cut = hub.cut, max(hub.cut - 1, 0)
        try:
            self.wfile.write(data[: len(data) // 2] if cut else data)
        except OSError:
            cut = 1  # the reader had enough
        if cut:
            self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k, v)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Hub, str]]:
    """The hub and its address."""
    hub = Hub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
