"""What the engine says of itself as data: its log records over a socket of the run, and its KV cache once it answers."""

import asyncio
import contextlib
import os
import urllib.request

import msgspec

from firstlight.app.places import cache_folder
from firstlight.app.session import Session
from firstlight.core.ids import digest
from firstlight.core.run import LaunchSpec
from firstlight.watch.records import ENVIRONMENT, RecordSocket, plugin_files
from firstlight.watch.served import CacheInfo, missed_by, read_cache_info

OFF = "FIRSTLIGHT_LOG_PLUGIN"
LONGEST_PATH = 100
ANSWER_SECONDS = 3.0


def with_records(session: Session, spec: LaunchSpec) -> LaunchSpec:
    """The launch with vLLM's log plugin on its path, and the socket made that it sends to.

    Unchanged where that cannot be or might disturb: another engine or host, a list of plugins that the user chose, a path too long for a
    socket, FIRSTLIGHT_LOG_PLUGIN=0. The text of the log is read in any case.
    """
    close_records(session)
    env = {**os.environ, **spec.env}
    if spec.engine != "vllm" or not session.host.is_local or session.folder is None or env.get(OFF) == "0" or "VLLM_PLUGINS" in env:
        return spec
    path = f"{session.folder.attempt_there}/records.sock"
    if len(path.encode()) > LONGEST_PATH:
        return spec
    try:
        plugin = lay_plugin()
        session.records = RecordSocket(path)
    except OSError:
        return spec
    places = [plugin, *filter(None, [env.get("PYTHONPATH")])]
    return msgspec.structs.replace(spec, env={**spec.env, "PYTHONPATH": os.pathsep.join(places), ENVIRONMENT: path})


def lay_plugin() -> str:
    """The folder with the plugin, made once per version of it; nothing but its two files is on the engine's path."""
    files = plugin_files()
    folder = cache_folder() / "log-plugin" / digest(sorted((name, data.decode()) for name, data in files.items()))[:12]
    for name, data in files.items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            part.write_bytes(data)
            part.replace(path)
    return str(folder)


def close_records(session: Session) -> None:
    """Once the engine is ready or over nobody listens any more, and its plugin drops what it would send."""
    records, session.records = session.records, None
    if records is not None:
        records.close()


async def check_kv_cache(session: Session) -> CacheInfo | None:
    """The KV cache as the engine made it, beside the one that was predicted; saved as served.json, told as an event."""
    if session.endpoint is None or session.endpoint.engine != "vllm" or not session.host.is_local:
        return None
    found = read_cache_info(await asyncio.to_thread(_metrics, session.endpoint.base_url.removesuffix("/v1")))
    if found is None or session.plan_set is None or session.plan_set.best is None:
        return found
    predicted = session.plan_set.best.kv_tokens
    off = missed_by(found.tokens, predicted.mid)
    session.emitter.emit("kv-cache", tokens=found.tokens, predicted=predicted.mid, missed_by=off, concurrency=found.concurrency)
    session.save(found, "served.json")
    return found


def _metrics(root: str) -> str:
    """The text of /metrics, empty where the server does not give it."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{root}/metrics", timeout=ANSWER_SECONDS) as answer:
        return str(answer.read(16 << 20).decode("utf-8", "replace"))
    return ""
