"""A model on a hub, read in ranges: the file list of one revision, then only the bytes that are asked for.

Speaks the Hugging Face hub's API (HF_ENDPOINT, HF_TOKEN). The token goes to the endpoint's own host alone and into no message.
"""

import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any
from urllib.parse import quote as url_quote

import httpx2

from firstlight import __version__
from firstlight.core.errors import FirstlightError, InputError
from firstlight.core.hub import endpoint, shown, token
from firstlight.core.ports import FileInfo
from firstlight.inspect.hub_errors import from_response, unreachable

PARALLEL = 16
ATTEMPTS = 4
RETRY_STATUS = frozenset((408, 429, 500, 502, 503, 504))
WAIT_LIMIT = 20.0
SKIP_LIMIT = 64 << 20  # what is read and thrown away when a server ignores ranges
_BEGIN = re.compile(r"bytes (\d{1,18})-")
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)


class HubSource:
    """The files of `repo` at one commit. Raises InputError with a `hub-*` code."""

    first_read = 1 << 16
    one_file = False

    def __init__(
        self,
        ref: str,
        repo: str,
        *,
        revision: str | None,
        quant: str | None,
        env: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.ref = ref
        self.repo = repo
        self.revision = revision
        self.quant = quant
        self.root: str | None = None
        self.requests = 0
        self._asked = revision or "main"
        self._endpoint = endpoint(env)
        self._token = token(env, _token_file)
        self._sleep = sleep
        self._final: dict[str, str] = {}
        self._listed: list[FileInfo] | None = None
        headers = {"user-agent": f"firstlight/{__version__}", "accept-encoding": "identity"}
        limits = httpx2.Limits(max_connections=PARALLEL, max_keepalive_connections=PARALLEL)
        self._client = httpx2.Client(headers=headers, timeout=TIMEOUT, limits=limits, follow_redirects=True)
        weakref.finalize(self, self._client.close)  # connections are kept for the next range, not longer than the source

    def list(self) -> Sequence[FileInfo]:
        """Files with their sizes (and sha256 where the hub keeps large files); fixes the revision to its commit."""
        if self._listed is None:
            url = f"{self._endpoint}/api/models/{self.repo}/revision/{url_quote(self._asked, safe='')}?blobs=true"
            document = self._json(url)
            self.revision = str(document.get("sha") or self._asked)
            siblings = document.get("siblings")
            entries = [s for s in (siblings if isinstance(siblings, list) else []) if isinstance(s, dict) and s.get("rfilename")]
            sizes = {} if all(_size(s) is not None for s in entries) else self._sizes()
            self._listed = [_file(s, sizes) for s in entries]
        return self._listed

    def _sizes(self) -> dict[str, int]:
        """For mirrors whose file list has no sizes: the tree's."""
        url = f"{self._endpoint}/api/models/{self.repo}/tree/{url_quote(self.revision or self._asked, safe='')}?recursive=true"
        try:
            tree = self._retry(lambda: self._get_json(url), url)
        except InputError:  # a mirror without it: the first file without a size is named then
            return {}
        found = {str(e.get("path")): _size(e) for e in tree if isinstance(e, dict)} if isinstance(tree, list) else {}
        return {path: size for path, size in found.items() if size is not None}

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        data = self._retry(lambda: self._ranged(self._final.get(path) or self._url(path), path, offset, length), path)
        assert isinstance(data, bytes)
        return data

    def read_many(self, ranges: Sequence[tuple[str, int, int]]) -> Iterator[bytes]:
        """In order, PARALLEL at once, at most twice as many waiting: memory stays bounded."""
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="hub") as pool:
            pending: deque[Future[bytes]] = deque()
            todo = iter(ranges)
            try:
                for one in islice(todo, 2 * PARALLEL):
                    pending.append(pool.submit(self.read, *one))
                while pending:
                    result = pending.popleft().result()
                    for one in islice(todo, 1):
                        pending.append(pool.submit(self.read, *one))
                    yield result
            finally:
                for future in pending:
                    future.cancel()

    def _url(self, path: str) -> str:
        return f"{self._endpoint}/{self.repo}/resolve/{url_quote(self.revision or self._asked, safe='')}/{url_quote(path)}"

    def _headers(self, url: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"} if self._token and url.startswith(self._endpoint + "/") else {}

    def _json(self, url: str) -> dict[str, Any]:
        document = self._retry(lambda: self._get_json(url), url)
        if not isinstance(document, dict):
            raise self._no_hub(f"expected: an object about {self.repo}")
        return document

    def _no_hub(self, *evidence: str) -> InputError:
        address = shown(self._endpoint)
        return InputError("hub-answer", f"{address} does not answer as a hub", evidence=evidence, hint="see HF_ENDPOINT")

    def _get_json(self, url: str) -> Any:
        self.requests += 1
        response = self._client.get(url, headers=self._headers(url))
        self._check(response, None)
        try:
            return response.json()
        except ValueError:
            raise self._no_hub(f"expected: JSON at {response.url.path}") from None

    def _ranged(self, url: str, path: str, offset: int, length: int | None) -> bytes:
        last = "" if length is None else str(offset + length - 1)
        self.requests += 1
        with self._client.stream("GET", url, headers={**self._headers(url), "range": f"bytes={offset}-{last}"}) as response:
            if response.status_code in (401, 403) and path in self._final:
                self._final.pop(path)  # a signed address that has run out
                raise _Again("the signed address has run out", 0.0)
            self._check(response, path)
            self._final[path] = str(response.url)
            if response.status_code == 206:
                self._check_range(response, path, offset)
                return self._body(response, length)
            return self._without_ranges(response, path, offset, length)

    def _check_range(self, response: httpx2.Response, path: str, offset: int) -> None:
        """A proxy that cuts ranges its own way would have us read another tensor's bytes as a header."""
        begin = _BEGIN.match(response.headers.get("content-range", ""))
        if begin and int(begin[1]) != offset:
            raise self._no_hub(f"{path}: expected: bytes from {offset:,}, found: from {int(begin[1]):,}")

    def _body(self, response: httpx2.Response, length: int | None) -> bytes:
        data = bytearray()
        for piece in response.iter_bytes():
            data += piece
            if length is not None and len(data) > length:
                break  # more than was asked for: a server that counts wrongly must not fill the memory
        expected = response.headers.get("content-length")
        if expected and expected.isdigit() and len(data) < min(int(expected), length if length is not None else int(expected)):
            raise _Again(f"expected: {int(expected):,} bytes, found: {len(data):,}", 0.2)
        return bytes(data if length is None else data[:length])

    def _without_ranges(self, response: httpx2.Response, path: str, offset: int, length: int | None) -> bytes:
        """A server that answers with the whole file: what comes before is skipped while that is cheap."""
        if offset > SKIP_LIMIT:
            raise InputError(
                "hub-no-ranges",
                f"{shown(self._endpoint)} does not serve parts of files",
                evidence=(path,),
                hint="fetch the model, then inspect the folder",
            )
        data = bytearray()
        end = None if length is None else offset + length
        for piece in response.iter_bytes():
            data += piece
            if end is not None and len(data) >= end:
                break
        return bytes(data[offset:end])

    def _check(self, response: httpx2.Response, path: str | None) -> None:
        """Raises _Again for what passes by itself, the hub error otherwise."""
        status = response.status_code
        if status in (200, 206):
            return
        if status in RETRY_STATUS:
            raise _Again(f"HTTP {status}", _wait_of(response), response)
        raise from_response(response, self.repo, self._asked, path, has_token=self._token is not None)

    def _retry(self, call: Callable[[], Any], url: str) -> Any:
        last: Exception | None = None
        for attempt in range(ATTEMPTS):
            try:
                return call()
            except _Again as e:
                last, wait = e, min(e.wait or 0.5 * 2**attempt, WAIT_LIMIT)
            except httpx2.TransportError as e:
                last, wait = e, 0.3 * 2**attempt
            except (httpx2.RequestError, httpx2.InvalidURL) as e:  # redirects in a circle or to nowhere, a body that cannot be unpacked
                raise self._no_hub(f"{type(e).__name__}: {e}") from None
            if attempt + 1 < ATTEMPTS:
                self._sleep(wait)
        raise self._given_up(last, url)

    def _given_up(self, last: Exception | None, url: str) -> FirstlightError:
        host = shown(self._endpoint)
        if isinstance(last, _Again) and last.response is not None:
            return from_response(last.response, self.repo, self._asked, None, has_token=self._token is not None, attempts=ATTEMPTS)
        if isinstance(last, httpx2.RemoteProtocolError | _Again):
            evidence = (str(last), f"tried {ATTEMPTS} times")
            return InputError("hub-truncated", f"{host} breaks off in the middle of its answers", evidence=evidence, hint="try again later")
        if isinstance(last, httpx2.RequestError) and last._request is not None:
            host = shown(str(last.request.url))  # where a redirect led, perhaps
        return unreachable(host, last, ATTEMPTS)


class _Again(Exception):
    """Worth another try after `wait` seconds (0: the default)."""

    def __init__(self, reason: str, wait: float, response: httpx2.Response | None = None) -> None:
        super().__init__(reason)
        self.wait = wait
        self.response = response


def _wait_of(response: httpx2.Response) -> float:
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdigit() else 0.0


def _size(entry: Mapping[str, Any]) -> int | None:
    lfs = entry.get("lfs")
    sizes = (entry.get("size"), lfs.get("size") if isinstance(lfs, dict) else None)
    return next((s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and s >= 0), None)


def _file(entry: Mapping[str, Any], sizes: Mapping[str, int]) -> FileInfo:
    """Raises InputError `hub-answer` for a file whose size the hub tells nowhere: without it no header can be checked."""
    name, size = str(entry["rfilename"]), _size(entry)
    size = sizes.get(name) if size is None else size
    if size is None:
        raise InputError("hub-answer", f"the hub does not say how large {name} is", hint="fetch the model, then inspect the folder")
    lfs = entry.get("lfs")
    large = lfs if isinstance(lfs, dict) else {}
    digest = large.get("sha256") or large.get("oid")
    return FileInfo(path=name, size=size, sha256=digest if isinstance(digest, str) else None)


def _token_file(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(4096)
    except (OSError, UnicodeDecodeError):
        return None
