"""Forks a fetch per line on stdin, so that killing fifty of them does not cost fifty Python starts.

Arguments: REF DESTINATION (`-`: the cache). Prints `pid N`, then `exit STATUS` (negative: the signal).
"""

import asyncio
import os
import sys

import huggingface_hub.hf_api  # noqa: F401 (imported once, before the forks)

from firstlight.fetch.fetch import fetch
from firstlight.fetch.source import load_sources


def main() -> None:
    ref, destination = sys.argv[1], None if sys.argv[2] == "-" else sys.argv[2]
    load_sources()
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(fetch(ref, destination=destination))
                os._exit(0)
            except BaseException as e:
                print(type(e).__name__, e, file=sys.stderr, flush=True)
                os._exit(1)
        print(f"pid {child}", flush=True)
        print(f"exit {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


if __name__ == "__main__":
    main()
