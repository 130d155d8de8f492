"""The Hugging Face hub or a mirror (`HF_ENDPOINT`): huggingface_hub for metadata, own ranges for bytes."""

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from firstlight.core.errors import ConsentError, FirstlightError, HostError, InputError
from firstlight.core.hub import endpoint, hub_cache, is_offline, shown, token
from firstlight.fetch.source import Changed, Listing, RemoteFile, Retry
from firstlight.fetch.sources.http import HttpBody, open_range
from firstlight.fetch.wire import Answer, Wire, untrusted

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

REF = re.compile(r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^:@]+))?(?::(?P<variant>[\w.-]+))?")
DENIED = frozenset({401, 403})


class HubSource:
    """`org/name[@revision][:QUANTIZATION]` or `hf://…`. Every address carries the commit, so a moved branch changes nothing midway."""

    name = "hub"

    def __init__(self) -> None:
        self._signed: dict[str, str] = {}
        self._lock = threading.Lock()

    def accepts(self, ref: str) -> int:
        return 40 if REF.fullmatch(ref) else 0

    def list(self, ref: str, wire: Wire, env: Mapping[str, str]) -> Listing:
        repo, revision, variant = split_ref(ref)
        if is_offline(env):
            raise HostError(
                "offline", f"{repo} is not complete on this disk, and HF_HUB_OFFLINE forbids to fetch it", hint="unset HF_HUB_OFFLINE"
            )
        info = _model_info(repo, revision, env)
        try:
            files = [_remote(s, f"{endpoint(env)}/{repo}/resolve/{info.sha}") for s in info.siblings or []]
            license = _license(info.card_data)
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            raise _unreadable(e) from None
        if not info.sha:
            raise _unreadable("it names no commit")
        return Listing(
            ref=ref,
            source=self.name,
            name=repo,
            files=files,
            revision=info.sha,
            asked_revision=revision or "main",
            license=license,
            gated=str(info.gated) if info.gated else None,
            variant=variant,
        )

    def cache(self, listing: Listing, env: Mapping[str, str]) -> Path | None:
        return Path(hub_cache(env)).expanduser()

    def open(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> HttpBody:
        """Asks the signed address that an earlier request was sent to; the hub again when that one has expired."""
        with self._lock:
            signed = self._signed.get(file.locator)
        if signed is not None:
            answer = open_range(wire, file, signed, start, end, {})
            if answer.status in (200, 206):
                return HttpBody(answer)
            answer.close()
        return self._open_at_hub(file, start, end, wire, env)

    def _open_at_hub(self, file: RemoteFile, start: int, end: int | None, wire: Wire, env: Mapping[str, str]) -> HttpBody:
        secret = _token(env)
        answer = open_range(wire, file, file.locator, start, end, {"Authorization": f"Bearer {secret}"} if secret else {})
        if answer.status not in (200, 206):
            raise _refused(answer, file, env)
        tag = next((t for h in answer.hops if (t := h.get("X-Linked-Etag"))), None)
        if tag and file.sha256 and tag.removeprefix("W/").strip('"') != file.sha256:
            answer.close()
            raise Changed(f"{file.name} has another content now")
        if answer.hops:
            with self._lock:
                self._signed[file.locator] = answer.url
        return HttpBody(answer)


def split_ref(ref: str) -> tuple[str, str | None, str | None]:
    """`org/name`, revision, quantization."""
    match = REF.fullmatch(ref)
    if match is None:
        raise InputError("model-not-found", f"{ref!r} is not org/name[@revision][:QUANTIZATION]")
    return match["repo"], match["revision"], match["variant"]


def _remote(sibling: Any, base: str) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(
        name=sibling.rfilename,
        locator=f"{base}/{quote(sibling.rfilename)}",
        size=sibling.size,
        sha256=lfs["sha256"] if lfs else None,
        git_sha1=None if lfs else sibling.blob_id,
        etag=lfs["sha256"] if lfs else sibling.blob_id,
    )


def _license(card: Any) -> str | None:
    """`other` says nothing: then the model's own name for its license."""
    name, own_name = (card.get("license"), card.get("license_name")) if card else (None, None)
    text = own_name if name in (None, "other") and own_name else name
    return ", ".join(map(str, text)) if isinstance(text, list) else text and str(text)


def _unreadable(why: Exception | str) -> HostError:
    words = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return HostError("hub-answer", "the hub's answer cannot be read", evidence=(words[:200],))


def _model_info(repo: str, revision: str | None, env: Mapping[str, str]) -> "ModelInfo":
    """Metadata of one revision. Raises Retry, FirstlightError."""
    import httpx2
    from huggingface_hub import HfApi, errors

    api = HfApi(endpoint=endpoint(env), token=_token(env) or False, library_name="firstlight")
    try:
        return api.model_info(repo, revision=revision, files_metadata=True, timeout=30)
    except errors.GatedRepoError:
        raise _gated(repo, env) from None
    except errors.RevisionNotFoundError:
        raise InputError("revision-not-found", f"{repo} has no revision {revision or 'main'!r}", evidence=(shown(endpoint(env)),)) from None
    except errors.RepositoryNotFoundError:
        raise InputError(
            "model-not-found",
            f"the hub knows no model {repo}, or hides it from you",
            evidence=(shown(endpoint(env)), _token_words(env)),
            hint="check the spelling; a private model needs HF_TOKEN",
        ) from None
    except errors.HfHubHTTPError as e:
        status = e.response.status_code
        if status in (429, 500, 502, 503, 504):
            wait = e.response.headers.get("Retry-After", "")
            raise Retry(f"the hub answered {status}", after=float(wait) if wait.isdecimal() else None, slower=status == 429) from None
        raise HostError("hub-refused", f"the hub refused to describe {repo}", evidence=(f"status {status}",)) from None
    except httpx2.TransportError as e:
        if "CERTIFICATE_VERIFY_FAILED" in str(e):
            raise untrusted(shown(endpoint(env)), str(e)) from None
        raise Retry(f"the hub cannot be reached ({type(e).__name__}: {e})") from None
    except (KeyError, TypeError, AttributeError, ValueError) as e:  # not what huggingface_hub itself expects
        raise _unreadable(e) from None


def _token(env: Mapping[str, str]) -> str | None:
    return token(env, _token_file)


def _token_file(path: str) -> str | None:
    try:
        return Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _token_words(env: Mapping[str, str]) -> str:
    return "a token was sent" if _token(env) else "no token was sent"


def _gated(repo: str, env: Mapping[str, str], *more: str) -> ConsentError:
    return ConsentError(
        "gated-repo",
        f"{repo} is gated: its owner wants your consent to its terms first",
        evidence=(*more, _token_words(env)),
        hint=f"accept the terms at {shown(endpoint(env))}/{repo}, then set HF_TOKEN to a token of that account",
    )


def _refused(answer: Answer, file: RemoteFile, env: Mapping[str, str]) -> FirstlightError | Retry | Changed:
    code, hop = re.sub(r"\W", "", answer.headers.get("X-Error-Code", "")), bool(answer.hops)
    answer.close()
    if answer.status in DENIED and hop and not code:
        return Retry("the signed address was refused")
    if answer.status == 404:
        return Changed(f"{file.name} is gone")
    words = f"the hub refuses {file.name}: status {answer.status} {code}".rstrip()
    if answer.status in DENIED and code == "GatedRepo":
        return _gated(file.locator.removeprefix(f"{endpoint(env)}/").partition("/resolve/")[0], env, words)
    if answer.status in DENIED:
        return ConsentError("hub-denied", f"the hub does not give out {file.name}", evidence=(words, _token_words(env)),
                            hint="set HF_TOKEN to a token that may read this model (`hf auth whoami` tells whose it is)")  # fmt: skip
    return HostError("hub-refused", f"the hub refuses {file.name}", evidence=(words,))


source = HubSource()
