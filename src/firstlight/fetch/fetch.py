"""`fetch` and `estimate`: a model's files on this machine's disk, verified; and what that will cost, before."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from firstlight.core.fetch import Fetched, FetchEstimate, FetchProgress
from firstlight.fetch.estimate import measure
from firstlight.fetch.options import OnProgress, Options, Validate
from firstlight.fetch.session import Session
from firstlight.fetch.transfer import Settings

BEAT = 0.2


def _silent(_: FetchProgress) -> None:
    """Nobody wants to see it."""


async def fetch(
    ref: str,
    *,
    destination: str | None = None,
    on_progress: OnProgress = _silent,
    limit_rate: float | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    validate: Validate | None = None,
    verify: bool = False,
    connections: int = 16,
    patience: float = 300.0,
    silence: float = 30.0,
    cache: str | None = None,
) -> Fetched:
    """Puts `ref` on the disk and returns where; moves only what is not there. `Fetched.path`: the folder, or the .gguf.

    destination: the folder for the files; None: the Hugging Face cache for hub models, firstlight's cache for others, and no move at
    all for what is a folder already. limit_rate: bytes per second. include, exclude: glob patterns of file names.
    validate: called in a thread with every weight file as it lands; a blocker ends the fetch.
    verify: hashes what is here and fetches again what rotted. patience: seconds without a byte until it gives up; silence: until one
    connection is given up. cache: firstlight's cache folder. Raises FirstlightError; cancelling keeps what arrived.
    """
    settings = Settings(connections=connections, limit_rate=limit_rate, patience=patience, silence=silence)
    options = Options(destination, include, exclude, verify, validate, settings, cache)
    session = Session(ref, options, dict(os.environ if env is None else env))
    task = asyncio.create_task(asyncio.to_thread(session.run))
    try:
        while not (await asyncio.wait({task}, timeout=BEAT))[0]:
            on_progress(session.progress())
    except asyncio.CancelledError:
        session.cancel()
        await asyncio.wait({task})
        task.exception()
        raise
    fetched = task.result()
    on_progress(session.progress())
    return fetched


async def estimate(
    ref: str,
    *,
    destination: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cache: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> FetchEstimate:
    """What `fetch` would move, from metadata alone; nothing is written. say: called in a thread with why it waits.

    Raises FirstlightError as `fetch` does.
    """
    options = Options(destination=destination, include=include, exclude=exclude, cache=cache)
    stop = threading.Event()
    try:
        return await asyncio.to_thread(partial(measure, ref, options, dict(os.environ if env is None else env), stop, say))
    finally:
        stop.set()
