"""A hub, a CDN and a simple index on loopback: real sockets, ranges, signed URLs, and faults on demand.

As a thread (`with Hub(folder) as hub`) or as a process (`python tests/hub/server.py FOLDER`, prints its port, faults by POST /_faults).
Layout of FOLDER: `org/name/REVISION/files…`; `main` is a name for the newest revision until `move` says otherwise.
"""

import contextlib
import hashlib
import json
import os
import socket
import ssl
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit


@dataclass
class Faults:
    """What goes wrong. The counters (`*_every`, `*_first`) count answers with a body, across all files."""

    reset_every: int = 0
    reset_after: int = 100_000
    truncate_every: int = 0
    wrong_bytes_first: int = 0
    wrong_name: str = ""
    wrong_size_first: int = 0
    too_many_first: int = 0
    too_many_every: int = 0
    retry_after: str = "0"
    busy_listings: int = 0
    error_first: int = 0
    error_status: int = 503
    no_ranges: bool = False
    ignore_range_every: int = 0
    bytes_per_second: float = 0.0
    link_bytes_per_second: float = 0.0
    stall_first: int = 0
    stall_seconds: float = 30.0
    signed_seconds: float = 0.0
    redirects: int = 0
    token: str = ""
    gated: str = ""
    license: str = "apache-2.0"
    move_after: int = 0
    move_to: str = ""
    no_length: bool = False
    xet: bool = False


@dataclass
class Counts:
    """What was asked of the server."""

    requests: int = 0
    bodies: int = 0
    bytes: int = 0
    by_status: dict[int, int] = field(default_factory=dict)
    by_file: dict[str, int] = field(default_factory=dict)
    open_bodies: int = 0
    most_open: int = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers do: else every short answer waits 40 ms for an acknowledgement of its own head
    server: "Server"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server.hub
        for name, value in json.loads(body or b"{}").items():
            setattr(hub.faults, name, value)
        hub.counts = Counts()
        self._json({})

    def _serve(self) -> None:
        hub = self.server.hub
        with hub.lock:
            hub.counts.requests += 1
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        try:
            if path == "/_counts":
                self._json(vars(hub.counts))
            elif path.startswith("/api/models/"):
                self._model(path.removeprefix("/api/models/"))
            elif "/resolve/" in path:
                self._resolve(path.lstrip("/"))
            elif path.startswith("/hop/"):
                self._hop(path.removeprefix("/hop/"), parts.query)
            elif path.startswith("/cdn/"):
                self._cdn(path.removeprefix("/cdn/"), query)
            elif path.startswith("/plain/"):
                self._plain(hub.folder / path.removeprefix("/plain/"))
            elif path.startswith("/simple/"):
                self._simple(path.removeprefix("/simple/").strip("/"))
            else:
                self._fail(404)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    # the hub

    def _allowed(self) -> bool:
        wanted = self.server.hub.faults.token
        return not wanted or self.headers.get("Authorization") == f"Bearer {wanted}"

    def _tree(self, rest: str) -> None:
        """What `list_repo_tree` asks for."""
        hub = self.server.hub
        repo, _, revision = rest.partition("/tree/")
        commit = hub.commit(repo, revision)
        if commit is None:
            return self._fail(404, {"X-Error-Code": "RevisionNotFound"})
        rows = []
        for name, path in hub.files(repo, commit).items():
            size, lfs = path.stat().st_size, hub.is_lfs(name)
            row: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": "0" * 40 if lfs else hub.git_sha1(path)}
            rows.append({**row, "lfs": {"oid": hub.sha256(path), "size": size, "pointerSize": 135}} if lfs else row)
        return self._json(rows)

    def _model(self, rest: str) -> None:
        if "/tree/" in rest:
            return self._tree(rest)
        hub = self.server.hub
        repo, _, revision = rest.partition("/revision/")
        if hub.faults.busy_listings:
            hub.faults.busy_listings -= 1
            return self._fail(429, {"Retry-After": hub.faults.retry_after})
        if not self._allowed() and not hub.faults.gated:
            return self._fail(401, {"X-Error-Code": "RepoNotFound"})
        commit = hub.commit(repo, revision or "main")
        if commit is None:
            return self._fail(404, {"X-Error-Code": "RevisionNotFound" if (hub.folder / repo).is_dir() else "RepoNotFound"})
        siblings = []
        for name, path in hub.files(repo, commit).items():
            size = path.stat().st_size
            lfs = hub.is_lfs(name)
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": "0" * 40 if lfs else hub.git_sha1(path)}
            if lfs:
                entry["lfs"] = {"sha256": hub.sha256(path), "size": size, "pointerSize": 135}
            siblings.append(entry)
        card = {"license": hub.faults.license} if hub.faults.license else {}
        gated = hub.faults.gated or False
        described = {"_id": "0", "id": repo, "modelId": repo, "sha": commit, "private": False, "tags": [], "downloads": 0, "likes": 0}
        return self._json({**described, "gated": gated, "siblings": siblings, "cardData": card})

    def _resolve(self, path: str) -> None:
        hub = self.server.hub
        repo, _, rest = path.partition("/resolve/")
        revision, _, name = rest.partition("/")
        if not self._allowed():
            return self._fail(403 if hub.faults.gated else 401, {"X-Error-Code": "GatedRepo" if hub.faults.gated else "RepoNotFound"})
        commit = hub.commit(repo, revision)
        target = hub.folder / repo / (commit or "") / name
        if commit is None or not target.is_file():
            return self._fail(404, {"X-Error-Code": "EntryNotFound" if commit else "RevisionNotFound"})
        size = target.stat().st_size
        headers = {"X-Repo-Commit": commit or ""}
        if not hub.is_lfs(name):
            return self._body(target, headers | {"ETag": f'"{hub.git_sha1(target)}"'})
        headers |= {"X-Linked-Etag": f'"{hub.sha256(target)}"', "X-Linked-Size": str(size), "ETag": f'"{hub.sha256(target)}"'}
        if hub.faults.xet:
            headers |= {"X-Xet-Hash": hub.sha256(target), "Link": f'<{hub.url}/xet>; rel="xet-auth"'}
        expires = f"?expires={time.time() + hub.faults.signed_seconds:.3f}" if hub.faults.signed_seconds else ""
        where = f"/cdn/{quote(f'{repo}/{commit}/{name}')}{expires}"
        if hub.faults.redirects:
            where = f"/hop/{hub.faults.redirects}{where}"
        self._redirect(f"{hub.cdn_url}{where}", headers)
        return None

    def _hop(self, rest: str, query: str) -> None:
        left, _, path = rest.partition("/")
        n = int(left) - 1
        where = f"/{quote(path)}" if n <= 0 else f"/hop/{n}/{quote(path)}"
        self._redirect(where + (f"?{query}" if query else ""), {})

    def _cdn(self, path: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        if "expires" in query and float(query["expires"][0]) < time.time():
            return self._fail(403)
        if self.headers.get("Authorization"):
            return self._fail(400, {"X-Error-Message": "a token was sent to the CDN"})
        target = hub.folder / path
        return self._body(target, {"ETag": f'"{hub.sha256(target)}"'} if target.is_file() else {})

    def _plain(self, path: Path) -> None:
        """As a file server does it: the entity tag is made of time and size."""
        state = path.stat() if path.is_file() else None
        self._body(path, {"ETag": f'"{state.st_mtime_ns:x}-{state.st_size:x}"'} if state else {})

    def _simple(self, package: str) -> None:
        hub = self.server.hub
        wheels = sorted((hub.folder / "wheels").glob("*.whl"))
        rows = [f'<a href="../../plain/wheels/{w.name}#sha256={hub.sha256(w)}">{w.name}</a><br>' for w in wheels]
        self._reply(200, ("<!DOCTYPE html><html><body>" + "\n".join(rows) + "</body></html>").encode(), "text/html")

    # bytes, with what may go wrong

    def _body(self, path: Path, headers: dict[str, str]) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        if not path.is_file():
            return self._fail(404)
        size = path.stat().st_size
        start, end, status = 0, size, 200
        wanted = self.headers.get("Range")
        with hub.lock:
            if self.command == "GET":
                hub.counts.bodies += 1
            n = hub.counts.bodies
        ranges = not faults.no_ranges and not (faults.ignore_range_every and n % faults.ignore_range_every == 0)
        if wanted and ranges and wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end, status = int(first), min(int(last) + 1 if last else size, size), 206
            if start >= size:
                return self._fail(416, {"Content-Range": f"bytes */{size}"})
            headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        if not faults.no_ranges:
            headers = headers | {"Accept-Ranges": "bytes"}
        if self.command == "GET":
            if n <= faults.too_many_first or (faults.too_many_every and n % faults.too_many_every == 0):
                return self._fail(429, {"Retry-After": faults.retry_after})
            if n <= faults.error_first:
                return self._fail(faults.error_status)
        if not (faults.no_length and status == 200):
            headers = headers | {"Content-Length": str(end - start)}
        self._head(
            status, headers | {"Content-Type": "application/octet-stream", "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
        )
        if self.command == "HEAD":
            return None
        self._send_file(path, start, end, n)
        if faults.no_length and status == 200:
            self.close_connection = True
        if faults.move_after and n == faults.move_after:
            hub.move(faults.move_to)
        return None

    def _send_file(self, path: Path, start: int, end: int, n: int) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        stop = end
        if faults.truncate_every and n % faults.truncate_every == 0:
            stop = start + (end - start) // 2
        reset = bool(faults.reset_every and n % faults.reset_every == 0)
        if reset:
            stop = min(end, start + faults.reset_after)
        wrong = n <= faults.wrong_bytes_first or (faults.wrong_name and path.name == faults.wrong_name)
        with hub.lock:
            hub.counts.open_bodies += 1
            hub.counts.most_open = max(hub.counts.most_open, hub.counts.open_bodies)
        try:
            self.wfile.flush()
            if wrong:
                data = bytearray(path.read_bytes()[start:stop])
                data[len(data) // 2] ^= 0xFF
                self.connection.sendall(data)
            else:
                self._stream(path, start, stop, stall=n <= faults.stall_first)
        finally:
            with hub.lock:
                hub.counts.open_bodies -= 1
                hub.counts.by_file[path.name] = hub.counts.by_file.get(path.name, 0) + stop - start
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if stop < end:
            self.close_connection = True

    def _stream(self, path: Path, start: int, stop: int, *, stall: bool) -> None:
        hub, faults = self.server.hub, self.server.hub.faults
        block = 16 << 20 if not faults.bytes_per_second else max(1024, int(faults.bytes_per_second / 20))
        if faults.link_bytes_per_second:
            block = 256 << 10
        with path.open("rb") as file:
            at = start
            while at < stop:
                if stall and at > start:
                    time.sleep(faults.stall_seconds)
                count = min(block if not stall else 1000, stop - at)
                sent = (
                    self.connection.sendfile(file, at, count)
                    if isinstance(self.connection, ssl.SSLSocket)
                    else os.sendfile(self.connection.fileno(), file.fileno(), at, count)
                )
                if not sent:
                    break
                at += sent
                with hub.lock:
                    hub.counts.bytes += sent
                if faults.bytes_per_second:
                    time.sleep(sent / faults.bytes_per_second)
                if faults.link_bytes_per_second:
                    time.sleep(hub.link_wait(sent))

    # answers

    def _head(self, status: int, headers: dict[str, str]) -> None:
        with self.server.hub.lock:
            counts = self.server.hub.counts
            counts.by_status[status] = counts.by_status.get(status, 0) + 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _reply(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self._reply(200, json.dumps(value).encode(), "application/json")

    def _fail(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._reply(status, b'{"error":"no"}', "application/json", headers)

    def _redirect(self, where: str, headers: dict[str, str]) -> None:
        self._head(302, {"Location": where, "Content-Length": "0", **headers})


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    hub: "Hub"

    def __init__(self, *args: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away (or was killed) is no news."""


class Hub:
    """The server with its state; `url` is the hub, `cdn_url` another origin (so that tokens must not follow)."""

    def __init__(self, folder: Path, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.folder, self.faults, self.counts = folder, Faults(), Counts()
        self.lock = threading.Lock()
        self.heads: dict[str, str] = {}
        self._link_free = 0.0
        self._digests: dict[tuple[str, float, str], str] = {}
        self.server = Server(("127.0.0.1", port), Handler)
        self.server.hub = self
        self.port = self.server.server_address[1]
        scheme = "https" if tls else "http"
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url, self.cdn_url = f"{scheme}://127.0.0.1:{self.port}", f"{scheme}://localhost:{self.port}"

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def link_wait(self, sent: int) -> float:
        """Seconds until the one link that all connections share is free again."""
        with self.lock:
            now = time.monotonic()
            self._link_free = max(self._link_free, now - 0.05) + sent / self.faults.link_bytes_per_second
            return max(0.0, self._link_free - now)

    def drop_all(self) -> None:
        """Cuts every connection, as a network that goes away does."""
        for connection in list(self.server.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def commit(self, repo: str, revision: str) -> str | None:
        folder = self.folder / repo
        if revision == "main":
            revision = self.heads.get(repo) or max((p.name for p in folder.iterdir()), default="") if folder.is_dir() else ""
        return revision if revision and (folder / revision).is_dir() else None

    def move(self, where: str) -> None:
        """`org/name=REVISION`: from now on `main` is that revision."""
        repo, _, revision = where.partition("=")
        self.heads[repo] = revision

    def files(self, repo: str, commit: str) -> dict[str, Path]:
        base = self.folder / repo / commit
        return {str(p.relative_to(base)): p for p in sorted(base.rglob("*")) if p.is_file()}

    @staticmethod
    def is_lfs(name: str) -> bool:
        return name.endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth", ".model", ".onnx", ".h5", ".msgpack"))

    def sha256(self, path: Path) -> str:
        return self._digest(path, "sha256", b"")

    def git_sha1(self, path: Path) -> str:
        return self._digest(path, "sha1", b"blob %d\0" % path.stat().st_size)

    def _digest(self, path: Path, kind: str, prefix: bytes) -> str:
        key = (str(path), path.stat().st_mtime, kind)
        if key not in self._digests:
            h = hashlib.new(kind, prefix)
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    h.update(block)
            self._digests[key] = h.hexdigest()
        return self._digests[key]


def main() -> None:
    with Hub(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0) as hub:
        print(hub.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
