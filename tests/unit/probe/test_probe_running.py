"""A command that another thread waits for is ended with its whole group."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from firstlight.core.ports import Completed
from firstlight.probe.local import LocalHost
from firstlight.probe.running import Interruptible


def test_an_interrupted_host_ends_what_it_runs_and_runs_nothing_more(tmp_path: Path) -> None:
    host, found, mark = LocalHost(), list[Completed](), tmp_path / "child"
    assert isinstance(host, Interruptible)
    script = f"(sleep 60; echo late > {mark}.late) & echo $! > {mark}; sleep 60"
    reader = threading.Thread(target=lambda: found.append(host.run(["sh", "-c", script], timeout=90)))
    reader.start()
    while not mark.exists() or not mark.read_text():
        time.sleep(0.01)
    began = time.monotonic()
    host.interrupt()
    reader.join(30)
    assert time.monotonic() - began < 20
    assert found[0].returncode == -9
    child = Path(f"/proc/{int(mark.read_text())}/stat")
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] in "ZX"
    assert host.run(["sleep", "30"]).returncode == -9


@pytest.mark.parametrize("word", ["true", "false"])
def test_another_host_goes_on(word: str) -> None:
    LocalHost().interrupt()
    assert LocalHost().run([word]).returncode == (word == "false")


LATE = """
import signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from firstlight.probe.running import results

pool = ThreadPoolExecutor(1)
begun = threading.Event()

def work():
    begun.set()
    time.sleep(1.0)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # to this thread: whoever waits is not woken
    time.sleep(120)

try:
    results([pool.submit(work)])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    import os
    os._exit(130)
"""


def test_an_interrupt_that_does_not_wake_who_waits_is_still_seen() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "interrupted\n"), done.stderr
