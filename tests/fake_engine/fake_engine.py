"""A fake engine that is a real process: scripted logs, delays and deaths, children, shared memory, and an OpenAI endpoint.

    python fake_engine.py SCRIPT [--port N] [--host H] [--served-model-name NAME] [anything else is accepted and ignored]

See README.md beside this file for the script's language. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from fake_http import Behaviour, Server  # noqa: E402


def option(argv: list[str], *names: str) -> str | None:
    """The last value of `--name v` or `--name=v`."""
    found = None
    for at, word in enumerate(argv):
        key, equals, value = word.partition("=")
        if key in names:
            found = value if equals else (argv[at + 1] if at + 1 < len(argv) else None)
    return found


class FakeEngine:
    """Runs a script's steps in order; each step is an object with one verb, and optionally `if` and `times`."""

    def __init__(self, script: dict[str, Any], argv: list[str], role: str = "main") -> None:
        self.script, self.argv, self.role = script, argv, role
        self.model = option(argv, "--served-model-name", "--alias") or script.get("model", "fake")
        self.port = int(option(argv, "--port") or 0)
        self.host = option(argv, "--host") or "127.0.0.1"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.server: Server | None = None
        self.kept: list[Any] = []

    def run(self) -> int:
        self._signals()
        self.steps(self.script.get("steps", []))
        return self.wait()

    def _signals(self) -> None:
        mode = self.script.get("on_sigterm", "exit")
        if mode == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            delay = float(self.script.get("sigterm_seconds", 0.0))
            signal.signal(signal.SIGTERM, lambda number, frame: self._leave(delay, int(self.script.get("sigterm_exit", 0))))

    def _leave(self, delay: float, code: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would wait for the first one's lock on the child
        self.say("Shutting down")
        time.sleep(delay)
        if not self.script.get("abandon_children"):
            for child in self.children.values():
                child.terminate()
                child.wait()
        os._exit(code)

    def steps(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            if self._applies(step.get("if")):
                for _ in range(int(step.get("times", 1))):
                    self._step(step)

    def _applies(self, condition: dict[str, Any] | None) -> bool:
        """`{"above": ["--max-model-len", 4096]}`, `{"has": "--flag"}`, `{"lacks": "--flag"}`, `{"env": ["NAME", "value"]}`,
        `{"file": PATH}`, `{"no_file": PATH}`: all given ones must hold."""
        tests: dict[str, Callable[[Any], bool]] = {
            "above": lambda v: float(option(self.argv, v[0]) or 0) > v[1],
            "below": lambda v: float(option(self.argv, v[0]) or 0) < v[1],
            "has": lambda v: v in self.argv,
            "lacks": lambda v: v not in self.argv,
            "env": lambda v: os.environ.get(v[0]) == v[1],
            "file": lambda v: os.path.exists(os.path.expandvars(v)),
            "no_file": lambda v: not os.path.exists(os.path.expandvars(v)),
        }
        return all(tests[name](value) for name, value in (condition or {}).items())

    def _step(self, step: dict[str, Any]) -> None:
        for verb, value in step.items():
            if verb not in ("if", "times", "stream", "seconds", "size"):
                getattr(self, f"do_{verb}")(value, step)

    def fill(self, text: str) -> str:
        known = {"pid": os.getpid(), "port": self.port, "model": self.model, "host": self.host, "time": time.strftime("%m-%d %H:%M:%S")}
        known["path"] = self.argv[self.argv.index("serve") + 1] if "serve" in self.argv else "model"
        for name, found in known.items():
            text = text.replace("{" + name + "}", str(found))
        return text

    def say(self, text: str, stream: str = "stdout") -> None:
        """One write a line, as loggers do, so that lines of several processes stay whole."""
        with contextlib.suppress(OSError):  # a real engine goes on when its log does not
            os.write(2 if stream == "stderr" else 1, self.fill(text).encode() + b"\n")

    # the verbs

    def do_log(self, text: str, step: dict[str, Any]) -> None:
        self.say(text, step.get("stream", "stdout"))

    def do_raw(self, text: str, step: dict[str, Any]) -> None:
        os.write(2 if step.get("stream") == "stderr" else 1, self.fill(text).encode())

    def do_logfile(self, name: str, step: dict[str, Any]) -> None:
        """A real log, line by line, `seconds` between lines."""
        for line in (
            (HERE / name).read_text(errors="replace").splitlines() if not os.path.isabs(name) else Path(name).read_text().splitlines()
        ):
            self.say(line)
            time.sleep(float(step.get("seconds", 0.0)))

    def do_sleep(self, seconds: float, step: dict[str, Any]) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))

    def do_hang(self, value: Any, step: dict[str, Any]) -> None:
        """Never goes on; `"deaf"` ignores SIGTERM too."""
        if value == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(3600)

    def do_flood(self, count: int, step: dict[str, Any]) -> None:
        """That many bytes of log, as fast as the reader takes them."""
        line = (b"x" * 199 + b"\n") * 512
        while count > 0:
            count -= os.write(1, line[:count])

    def do_exit(self, code: int, step: dict[str, Any]) -> None:
        os._exit(code)

    def do_signal(self, name: str, step: dict[str, Any]) -> None:
        """The process sends it to itself: SIGKILL, SIGSEGV, SIGSTOP, …"""
        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE off: no core file of a scripted crash
        os.kill(os.getpid(), getattr(signal, name))

    def do_serve(self, value: dict[str, Any] | bool, step: dict[str, Any]) -> None:
        """Opens the endpoint. An address in use ends the process with 1, as real servers do."""
        behaviour = Behaviour.of(value if isinstance(value, dict) else {}, self.model, os.environ.get("VLLM_API_KEY"))
        try:
            self.server = Server((self.host, self.port), behaviour)
        except OSError as e:
            self.say(
                f"ERROR: [Errno {e.errno}] error while attempting to bind on address ({self.host!r}, {self.port}): {e.strerror}", "stderr"
            )
            os._exit(1)
        self.server.start()

    def do_http(self, change: dict[str, Any], step: dict[str, Any]) -> None:
        """Changes how the endpoint behaves from now on."""
        assert self.server is not None, "http before serve"
        self.server.behaviour.change(change)

    def do_close(self, value: Any, step: dict[str, Any]) -> None:
        """Closes the endpoint; the process stays."""
        assert self.server is not None, "close before serve"
        self.server.stop()

    def do_spawn(self, child: dict[str, Any], step: dict[str, Any]) -> None:
        """A child with a script of its own: {"name", "steps", …}. `detach`: in a session of its own; `clean`: without the environment."""
        environment = {"PATH": os.environ.get("PATH", "")} if child.get("clean") else None
        self.children[child["name"]] = subprocess.Popen(
            [sys.executable, __file__, json.dumps(child), *self.argv, "--role", child["name"]],
            start_new_session=bool(child.get("detach")),
            env=environment,
        )

    def do_wait_file(self, path: str, step: dict[str, Any]) -> None:
        """Waits for a file (a child touches it); a child that failed meanwhile ends us too, the way an API server does."""
        target = Path(os.path.expandvars(path))
        while not target.exists():
            time.sleep(0.01)
            if any(child.poll() is not None for child in self.children.values()):
                self.say("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", "stderr")
                os._exit(1)

    def do_wait_request(self, count: int, step: dict[str, Any]) -> None:
        """Waits until that many generation requests are hanging."""
        assert self.server is not None, "wait_request before serve"
        while self.server.behaviour.running < count:
            time.sleep(0.01)

    def do_zombies(self, count: int, step: dict[str, Any]) -> None:
        """Children that ended and are never waited for."""
        self.kept += [subprocess.Popen(["true"]) for _ in range(count)]

    def do_shm(self, size: int, step: dict[str, Any]) -> None:
        """A segment in /dev/shm, mapped and left behind."""
        import mmap

        path = f"/dev/shm/psm_fake_{os.getpid()}_{len(self.kept)}"
        with open(path, "wb+") as file:
            file.truncate(size)
            self.kept.append(mmap.mmap(file.fileno(), size))

    def do_allocate(self, size: int, step: dict[str, Any]) -> None:
        """Memory that is really touched."""
        self.kept.append(bytearray(b"\1") * size)

    def do_touch(self, path: str, step: dict[str, Any]) -> None:
        Path(os.path.expandvars(path)).touch()

    def do_read(self, path: str, step: dict[str, Any]) -> None:
        """Reads a file in pieces, as a loader does; one that is gone or ends early is an error with a traceback."""
        target, size = Path(self.fill(os.path.expandvars(path))), int(step.get("size", -1))
        done = 0
        with target.open("rb") as file:
            while piece := file.read(1 << 20):
                done += len(piece)
                time.sleep(float(step.get("seconds", 0.0)))
        if 0 <= size != done:
            raise ValueError(f"incomplete shard {target}: {done} of {size} bytes")

    def do_steps(self, steps: list[dict[str, Any]], step: dict[str, Any]) -> None:
        """A group, for `if` and `times`."""
        self.steps(steps)

    def wait(self) -> int:
        """Serves until it is ended; without an endpoint or children the script's end is the process's end."""
        if self.server is None and not self.children:
            return int(self.script.get("exit", 0))
        while True:
            time.sleep(0.02)
            for name, child in self.children.items():
                if child.poll() is not None and self.script.get("on_child_death", "exit") == "exit":
                    self.say(f"ERROR Engine core proc {name} died unexpectedly, shutting down client.", "stderr")
                    self._leave(0.0, 1)


def load(text: str) -> dict[str, Any]:
    """A script from a path, a name under scripts/, or JSON itself."""
    if text.lstrip().startswith("{"):
        found = json.loads(text)
    else:
        path = Path(text)
        found = json.loads((path if path.exists() else HERE / "scripts" / f"{text}.json").read_text())
    assert isinstance(found, dict), "a script is an object"
    return found


def main(argv: list[str]) -> int:
    socket.setdefaulttimeout(None)
    script = argv[0] if argv and not argv[0].startswith("-") and argv[0] != "serve" else os.environ.get("FAKE_ENGINE_SCRIPT", "ready")
    engine = FakeEngine(load(script), argv, option(argv, "--role") or "main")
    return engine.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
