"""HTTP for large bodies: pooled connections, reads into the caller's buffer, redirects, proxies, certificates. Retries are the caller's."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from email.message import Message
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from firstlight import __version__
from firstlight.core.errors import HostError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_HOPS = 10
FILL_SECONDS = 0.1
CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
Origin = tuple[str, str, int]


class WireError(Exception):
    """The network or the server failed in a way that may pass: try again."""


def untrusted(host: str, words: str) -> HostError:
    """Waiting does not help against a certificate that nobody vouches for."""
    hint = "where a proxy or mirror has its own authority, SSL_CERT_FILE or REQUESTS_CA_BUNDLE names the file with its certificate"
    if "expired" in words or "not yet valid" in words:
        hint = f"is this machine's clock right? It says {time.strftime('%Y-%m-%d %H:%M %Z')}"
    return HostError("certificate-untrusted", f"the certificate of {host} cannot be verified", evidence=(words,), hint=hint)


class Answer:
    """One response. `hops`: the headers of the redirects before it. Close it; a body read to its end gives its connection back."""

    def __init__(self, wire: "Wire", connection: http.client.HTTPConnection, response: http.client.HTTPResponse, url: str) -> None:
        self._wire, self._connection, self._response = wire, connection, response
        self.url, self.status = url, response.status
        self.headers: Message = response.headers
        self.hops: list[Message] = []
        self._broken: WireError | None = None

    def readinto(self, view: memoryview) -> int:
        """Bytes into `view`; 0 at the end. Raises WireError when the connection breaks or ends early, after giving out what had come."""
        if self._broken is not None:
            raise self._broken
        filled, until = 0, time.monotonic() + FILL_SECONDS
        while filled < len(view):
            try:
                n = self._read_once(view[filled:])
            except (OSError, http.client.HTTPException, ValueError) as e:
                self._broken = WireError(_words(e))
                break
            filled += n
            if n == 0 or time.monotonic() > until:
                break
        if not filled and self._response.length:
            self._broken = self._broken or WireError(f"the answer ended {self._response.length} bytes early")
        if not filled and self._broken is not None:
            raise self._broken
        return filled

    def _read_once(self, view: memoryview) -> int:
        """One read of the socket: a slow or breaking connection must not hold back what it already gave."""
        response = self._response
        if response.chunked or response.length is None or response.fp is None:
            return response.readinto(view[:65536])
        n = response.fp.readinto1(view[: response.length]) if response.length else 0
        response.length -= n
        return n

    def read(self, limit: int = 64 << 20) -> bytes:
        """The whole body, at most `limit` bytes of it."""
        view, parts = memoryview(bytearray(65536)), bytearray()
        while len(parts) < limit and (n := self.readinto(view)):
            parts += view[:n]
        return bytes(parts)

    def close(self) -> None:
        done = self._response.isclosed() or self._response.length == 0
        self._response.close()
        if done and not self._response.will_close:
            self._wire.put_back(self._connection, self.url)
        else:
            self._connection.close()

    def abort(self) -> None:
        """From another thread: a blocked read ends at once."""
        sock = self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Wire:
    """Connections by origin. `timeout`: seconds without a byte after which a connection counts as broken."""

    def __init__(self, env: Mapping[str, str], *, timeout: float = 30.0) -> None:
        self._env, self.timeout = env, timeout
        self._idle: dict[Origin, list[http.client.HTTPConnection]] = {}
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None

    def request(self, method: str, url: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Follows redirects; `Authorization` stays with the origin it was meant for. Raises WireError, HostError certificate-untrusted."""
        sent, hops = dict(headers or {}), list[Message]()
        for _ in range(MAX_HOPS):
            answer = self._once(method, url, sent)
            where = answer.headers.get("Location")
            if answer.status not in REDIRECTS or not where:
                answer.hops = hops
                return answer
            hops.append(answer.headers)
            _drain(answer)
            there = urljoin(url, where)
            if _origin(urlsplit(there)) != _origin(urlsplit(url)):
                sent.pop("Authorization", None)
            url = there
        raise WireError(f"more than {MAX_HOPS} redirects")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def put_back(self, connection: http.client.HTTPConnection, url: str) -> None:
        with self._lock:
            self._idle.setdefault(_origin(urlsplit(url)), []).append(connection)

    def _once(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(url)
        connection, used = self._take(parts)
        try:
            return self._send(connection, method, url, parts, headers)
        except ssl.SSLCertVerificationError as e:
            connection.close()
            raise untrusted(parts.netloc.rpartition("@")[2], e.verify_message) from None
        except (OSError, http.client.HTTPException, ValueError) as e:
            connection.close()
            if not used:
                raise WireError(_words(e)) from None
        try:  # the idle connection was closed by the other side: a new one
            return self._send(self._connect(parts), method, url, parts, headers)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise WireError(_words(e)) from None

    def _send(
        self, connection: http.client.HTTPConnection, method: str, url: str, parts: SplitResult, headers: Mapping[str, str]
    ) -> Answer:
        proxied = parts.scheme == "http" and self._proxy(parts) is not None
        path = url if proxied else (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, headers={"User-Agent": f"firstlight/{__version__}", "Accept-Encoding": "identity", **headers})
        return Answer(self, connection, connection.getresponse(), url)

    def _take(self, parts: SplitResult) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            idle = self._idle.get(_origin(parts))
            if idle:
                return idle.pop(), True
        try:
            return self._connect(parts), False
        except (OSError, ValueError) as e:
            raise WireError(_words(e)) from None

    def _connect(self, parts: SplitResult) -> http.client.HTTPConnection:
        scheme, host, port = _origin(parts)
        proxy = self._proxy(parts)
        near = (proxy.hostname or "", proxy.port or 3128) if proxy else (host, port)
        if scheme == "http":
            return http.client.HTTPConnection(*near, timeout=self.timeout, blocksize=1 << 20)
        connection = http.client.HTTPSConnection(*near, timeout=self.timeout, context=self._tls(), blocksize=1 << 20)
        if proxy:
            connection.set_tunnel(host, port, headers=_proxy_authorization(proxy))
        return connection

    def _proxy(self, parts: SplitResult) -> SplitResult | None:
        def named(key: str) -> str | None:
            return self._env.get(key) or (self._env.get(key.upper()) if key != "http_proxy" else None)

        value = named(f"{parts.scheme}_proxy") or named("all_proxy")
        if not value or _bypassed(parts.hostname or "", named("no_proxy") or ""):
            return None
        return urlsplit(value if "//" in value else f"http://{value}")

    def _tls(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                file = next((self._env[name] for name in CERTIFICATES if self._env.get(name)), None)
                self._context = ssl.create_default_context(cafile=file or _bundled_certificates())
            return self._context


def _bypassed(host: str, no_proxy: str) -> bool:
    """`no_proxy`: hosts and domain suffixes by comma, `*` for all."""
    names = [n.strip().lower().lstrip(".") for n in no_proxy.split(",") if n.strip()]
    return any(n == "*" or host.lower() == n or host.lower().endswith(f".{n}") for n in names)


def _bundled_certificates() -> str | None:
    """certifi's, only where the system has none (slim containers)."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or paths.capath:
        return None
    import certifi

    return certifi.where()


def _origin(parts: SplitResult) -> Origin:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WireError(f"not an http address: {parts.scheme}://{parts.netloc}")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    import base64

    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


def _drain(answer: Answer) -> None:
    """The short body of a redirect, so that its connection can be used again."""
    with contextlib.suppress(WireError):
        answer.read(65536)
    answer.close()


def _words(error: Exception) -> str:
    """A network error in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error) or type(error).__name__
    return text if isinstance(error, OSError) else f"{type(error).__name__}: {text}"
