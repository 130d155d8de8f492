"""Plain HTTPS: one file, or a folder in which a model lies under the usual names. What is not served is not needed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from firstlight.core.errors import HostError, InputError
from firstlight.core.ids import digest, slug
from firstlight.fetch.source import Changed, Listing, RemoteFile
from firstlight.fetch.sources.http import HttpBody, ask, content_range, etag, open_range
from firstlight.fetch.wire import Wire

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLES = ("model.safetensors", "pytorch_model.bin")
BESIDE = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "hf_quant_config.json",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "LICENSE",
)  # fmt: skip
PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.\w+$)")
MAX_INDEX = 64 << 20


class HttpsSource:
    """`https://…/model.gguf` (with all its parts), or `https://…/folder/`. Revisions do not exist here: entity tags stand for them."""

    name = "https"

    def accepts(self, ref: str) -> int:
        return 70 if ref.startswith(("https://", "http://")) else 0

    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing:
        if "@" in urlsplit(ref).netloc:
            raise InputError("secret-in-address", "the address carries a user name or password", hint="secrets do not belong into commands")
        url = urlsplit(ref)._replace(fragment="").geturl()
        is_file = re.search(r"\.(gguf|safetensors|bin|pt|json)$", urlsplit(url).path) is not None
        addresses = _parts(url) if is_file else self._folder(url.rstrip("/") + "/", wire)
        files = [self._head(name, address, wire) for name, address in addresses.items()]
        missing = [f.name for f in files if f.etag == "missing"]
        if missing and is_file:
            raise InputError("model-not-found", f"the server has no {missing[0]}", evidence=(ref,))
        name = unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
        return Listing(
            ref=ref.partition("?")[0], source=self.name, files=[f for f in files if f.etag != "missing"], name=PART.sub("", name)
        )

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return None

    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> HttpBody:
        answer = open_range(wire, file, file.locator, start, end, {})
        if answer.status not in (200, 206):
            status = answer.status
            answer.close()
            raise Changed(f"{file.name} is gone") if status in (404, 410) else _refused(file.locator, status)
        body = HttpBody(answer)
        if file.etag and body.etag and body.etag != file.etag:
            body.close()
            raise Changed(f"{file.name} has another content now (entity tag {body.etag}, {file.etag} when listed)")
        return body

    def _folder(self, base: str, wire: Wire) -> dict[str, str]:
        """Names that are usual, and the shards that the index names."""
        names = [*BESIDE]
        for index in INDEXES:
            text = self._text(urljoin(base, index), wire)
            if text is not None:
                names += [index, *_shards(text, base)]
                break
        else:
            names += SINGLES
        return {n: urljoin(base, n) for n in names}

    def _text(self, url: str, wire: Wire) -> bytes | None:
        answer = ask(wire, "GET", url)
        try:
            return answer.read(MAX_INDEX) if answer.status == 200 else None
        finally:
            answer.close()

    def _head(self, name: str, url: str, wire: Wire) -> RemoteFile:
        answer = ask(wire, "HEAD", url)
        status, headers = answer.status, answer.headers
        answer.close()
        if status in (403, 404, 410):
            return RemoteFile(name=name, locator=url, etag="missing")
        if status in (405, 501):  # a server that knows no HEAD
            answer = ask(wire, "GET", url, {"Range": "bytes=0-0"})
            status, headers = answer.status, answer.headers
            answer.close()
        if status not in (200, 206):
            raise _refused(url, status)
        return RemoteFile(name=name, locator=url, size=content_range(status, headers)[1], etag=etag(headers))


def _refused(url: str, status: int) -> HostError:
    return HostError(
        "server-refused", "the server does not give out the file", evidence=(f"status {status}", urlsplit(url)._replace(query="").geturl())
    )


def _parts(url: str) -> dict[str, str]:
    """A file and, when its name says `-00001-of-00003`, all of its parts."""
    match = PART.search(urlsplit(url).path)
    addresses = [url]
    if match:
        addresses = [url.replace(match[0], f"-{i:05}-of-{match[2]}") for i in range(1, int(match[2]) + 1)]
    return {unquote(urlsplit(a).path.rpartition("/")[2]): a for a in addresses}


def _shards(index: bytes, base: str) -> list[str]:
    try:
        return sorted({str(v) for v in json.loads(index)["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("index-unreadable", "the index of shards is not what it should be", evidence=(base,)) from None


def place(listing: Listing) -> str:
    """A folder name: a preset's own, else readable, and unique by the whole address."""
    if slug(listing.ref) == listing.ref:
        return listing.ref
    return f"{slug(listing.name or 'model')[:60]}-{digest(listing.ref.partition('?')[0].encode(), length=8)}"


source = HttpsSource()
