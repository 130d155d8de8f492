"""Work in a thread that Ctrl-C does not leave half done."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

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
