"""Ctrl-C ends `watch` at once: on a silent pipe, and in the middle of a long log."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.parametrize("silent", [True, False])
def test_ctrl_c_is_heard(silent: bool, tmp_path: Path) -> None:
    long = tmp_path / "long.log"
    if not silent:
        long.write_text("INFO 01-01 00:00:00 [core.py:1] something took 3 s\n" * 2_000_000)
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "firstlight", "watch", *(["-"] if silent else ["--replay", str(long)])]
    watch = subprocess.Popen(
        command,
        stdin=reader,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        time.sleep(2)
        watch.send_signal(signal.SIGINT)
        assert watch.wait(timeout=5) == 130
    finally:
        watch.kill()
        watch.wait()
        os.close(reader)
        os.close(writer)
