"""URL or run: what `verify` and `bench` point at, with its key."""

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from firstlight.app.reconcile import reconcile
from firstlight.app.store import RunFolder, RunStore
from firstlight.app.where import chosen_host
from firstlight.core.errors import FirstlightError, InputError, UsageError
from firstlight.core.intent import Intent
from firstlight.core.run import TERMINAL, Endpoint
from firstlight.verify.answers import error_text
from firstlight.verify.client import Api
from firstlight.verify.wire import WireMeta, WireModel, WireModels, read

LIST_SECONDS = 20.0
KEY_VARIABLES = ("FIRSTLIGHT_API_KEY", "OPENAI_API_KEY")


class Target(NamedTuple):
    """An endpoint, its key (from a file or the environment, never from the command line), and its run's folder if it is ours."""

    endpoint: Endpoint
    api_key: str | None
    folder: RunFolder | None


def key_from(file: str | None) -> str | None:
    """The key from a file, else from the environment. Raises InputError `api-key-unreadable`."""
    if file is None:
        found = next((os.environ[v] for v in KEY_VARIABLES if os.environ.get(v)), None)
        return None if found is None else _plain(found, "the environment")
    try:
        return _plain(Path(file).read_text().strip(), file)
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "not text"
        raise InputError("api-key-unreadable", "the key file cannot be read", evidence=(f"{file}: {why}",)) from None


def _plain(key: str, origin: str) -> str:
    """A key as an HTTP header can carry it. The key itself is shown nowhere."""
    if not (key.isascii() and key.isprintable()):
        raise InputError("api-key-unreadable", "the key is not one line of printable ASCII", evidence=(f"from {origin}",))
    return key


def looks_like_url(text: str) -> bool:
    return "://" in text or (":" in text and text.rpartition(":")[2].split("/")[0].isdigit())


def planned_concurrency(target: Target) -> int | None:
    """Users at once that the run was planned for; None where nobody said, or it is no run of ours."""
    intent = target.folder.try_load(Intent, "intent.json") if target.folder else None
    return intent.concurrency if intent else None


def base_of(address: str) -> str:
    """The API's base, which ends in /v1, from whatever part of it was given: a host, a base, or the address of one of its calls.

    Raises UsageError `bad-url`: not HTTP, or with a query or credentials, which belong into a key file.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as e:
        raise UsageError("bad-url", f"not an address: {address!r}", evidence=(str(e),), hint="http://HOST:PORT/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError("bad-url", f"not an http address: {address!r}", hint="http://HOST:PORT/v1")
    if parts.username is not None or parts.query:
        what = "credentials" if parts.username is not None else "a query"
        raise UsageError("bad-url", f"an address with {what} is not taken", hint="http://HOST:PORT/v1, and --api-key-file for a key")
    path = parts.path.rstrip("/")
    for call in ("/chat/completions", "/completions", "/embeddings", "/models"):
        path = path.removesuffix(f"/v1{call}") + "/v1" if path.endswith(f"/v1{call}") else path
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


async def target_of(ref: str, *, model: str | None, key_file: str | None) -> Target:
    """What `ref` names. Raises run-not-found, run-not-serving, endpoint-unreachable, model-ambiguous."""
    if not looks_like_url(ref):
        return _of_run(ref, key_file)
    key = key_from(key_file)
    near = _near(Endpoint(base_url=base_of(ref), model=""), chosen_host() or "local").base_url
    return Target(await _discovered(near, model, key), key, None)


def _of_run(ref: str, key_file: str | None) -> Target:
    """A run that is over serves nothing: whoever answers at its port since then is a stranger."""
    folder = RunStore().find(ref)
    run = reconcile(folder)
    if run.endpoint is None or run.state in TERMINAL:
        raise UsageError("run-not-serving", f"the run {run.name} serves nothing", evidence=(f"state: {run.state}",), hint="firstlight up")
    return Target(_near(run.endpoint, run.host), key_from(key_file or run.endpoint.api_key_file), folder)


def _near(endpoint: Endpoint, host: str) -> Endpoint:
    """What is on another host is reached through ssh."""
    if host in ("local", "localhost", ""):
        return endpoint
    from firstlight.app.elsewhere import reached_for_good
    from firstlight.probe.hosts import open_host

    return reached_for_good(endpoint, open_host(host))


async def _discovered(base: str, model: str | None, key: str | None) -> Endpoint:
    """The endpoint as its own model list describes it."""
    api = Api(base, model or "", api_key=key, request_seconds=LIST_SECONDS)
    try:
        status, body = await api.get("/models")
    except FirstlightError as e:
        hint = "is the server up, and is this its address?"
        raise FirstlightError("endpoint-unreachable", "the endpoint does not answer", evidence=(e.message,), hint=hint) from None
    finally:
        await api.close()
    listed = read(body, WireModels) if status == 200 else f"status {status}"
    if isinstance(listed, str) or not listed.data:
        if model is not None:
            return Endpoint(base_url=base, model=model)
        hint = "give a key by --api-key-file" if status in (401, 403) else "name the model by --model"
        why = listed if isinstance(listed, str) else "an empty list"
        raise FirstlightError("no-model-list", f"GET {base}/models: {why}", evidence=(error_text(body)[:200],), hint=hint)
    return _described(base, listed.data, model)


def _described(base: str, rows: list[WireModel], model: str | None) -> Endpoint:
    names = [r.id or "unnamed" for r in rows]
    if model is None and len(names) > 1:
        raise UsageError("model-ambiguous", f"{len(names)} models are served", evidence=tuple(names[:8]), hint=f"--model {names[0]}")
    row = next((r for r in rows if r.id == model), rows[0])
    return Endpoint(
        base_url=base,
        model=model or names[0],
        engine=row.owned_by if row.owned_by in ("vllm", "llamacpp", "sglang") else None,
        max_model_len=row.max_model_len or (row.meta or WireMeta()).n_ctx,
    )
