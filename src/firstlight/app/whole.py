"""Work in a thread that Ctrl-C does not leave half done."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from firstlight.core.ports import Host
from firstlight.probe.hosts import open_host
from firstlight.probe.running import Interruptible

T = TypeVar("T")


async def whole(work: Callable[..., T], *args: Any, on_cancel: Callable[[], None] = lambda: None, **options: Any) -> T:
    """What `work` returns. A cancellation waits until it is done, then goes on: what it has written or started is known by then.

    on_cancel: tells the work that nobody waits for its result any more.
    """
    at_work = asyncio.ensure_future(asyncio.to_thread(work, *args, **options))
    try:
        return await asyncio.shield(at_work)
    except asyncio.CancelledError:
        on_cancel()
        await asyncio.wait([at_work])
        raise


async def interruptible(work: Callable[..., T], host: Host, *args: Any, **options: Any) -> T:
    """`work(host, …)` on a host object of its own: a cancellation ends the commands that it runs there, and nobody else's."""
    own = open_host(host.name) if isinstance(host, Interruptible) else host

    def end() -> None:
        if isinstance(own, Interruptible):
            own.interrupt()

    return await whole(work, own, *args, on_cancel=end, **options)
