"""Breaks a real vLLM in many real ways and checks what `diagnose` says of each log.

    python bench/break_vllm.py --python ENGINE/bin/python --out FOLDER [--only NAME,NAME] [--lock FILE] [--seconds 300] [--port 8431]
        [--forked] [--check]
    python bench/break_vllm.py --table

Each case is one real start with tiny models that the script makes itself (with the engine's own torch and tokenizers). The logs stay in
FOLDER as NAME.log with NAME.json beside it (exit status, seconds); --check reads logs that are there and starts nothing. What was found is
kept by release and case in bench/results/break_vllm.json; --table prints that as it stands in docs/diagnose.md. A start that neither ended
nor got ready within --seconds is told and not counted. --forked saves the ten seconds that vLLM's imports take: one process imports it and
forks for each case that sets no limits and no variables; the others are started after these. Two campaigns can run side by side, each with
its own --port and --lock.
"""

import argparse
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from break_cases import CASES, Case

from firstlight.diagnose.diagnose import diagnose

GENERAL = frozenset({"config-refused", "engine-check-failed"})  # true, but they only say where the engine refused
RESULTS = Path(__file__).parent / "results" / "break_vllm.json"
OWN = {
    "VLLM_TARGET_DEVICE": "cpu",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
VERSION = "import importlib.metadata as m; print(m.version('vllm').split('+')[0])"
MODELS = """
import json, os, sys
from tokenizers import Tokenizer, models, pre_tokenizers, trainers, decoders
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
import torch
out = sys.argv[1]
tok = Tokenizer(models.BPE()); tok.pre_tokenizer = pre_tokenizers.ByteLevel(); tok.decoder = decoders.ByteLevel()
tok.train_from_iterator(["the quick brown fox jumps over the lazy dog"] * 4, trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
fast = PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
torch.manual_seed(0)
config = LlamaConfig(vocab_size=320, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False, torch_dtype="bfloat16")
model = LlamaForCausalLM(config).to(torch.bfloat16)
model.save_pretrained(out, max_shard_size="400KB"); fast.save_pretrained(out)
"""

# Imports vLLM once and forks for each request on stdin: {argv, env, log}. Says the child's pid, then its status. The child is the CLI.
SERVER = """
import importlib, json, os, sys
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name in ("cli.serve", "cli.openai", "cli.launch", "cli.run_batch", "cli.collect_env", "cli.benchmark.main", "openai.api_server"):
    try:
        importlib.import_module("vllm.entrypoints." + name)
    except ImportError:
        pass
for line in iter(sys.stdin.readline, ""):
    wanted = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, file=said, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=said, flush=True)
else:
    os._exit(0)
os.setsid()
log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
for fd, to in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
    os.dup2(fd, to)
os.environ.update(wanted["env"])
sys.argv = ["vllm", *wanted["argv"]]
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""


class Forked:
    """A start made by the server: looks like a Popen to who waits for it."""

    def __init__(self, server: "subprocess.Popen[str]", argv: list[str], env: dict[str, str], log: Path) -> None:
        assert server.stdin is not None
        self._server, self._status = server, None
        server.stdin.write(json.dumps({"argv": argv, "env": env, "log": str(log)}) + "\n")
        server.stdin.flush()
        self.pid = int(self._answer())

    def _answer(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()

    def poll(self) -> int | None:
        if self._status is None and select.select([self._server.stdout], [], [], 0)[0]:
            self._status = int(self._answer())
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or 60.0)
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("forked", timeout or 60.0)
            time.sleep(0.05)
        return self._status or 0


def prepare(engine: str, out: Path) -> Path:
    base = out / "models" / "tiny"
    if not (base / "config.json").exists():
        subprocess.run([engine, "-c", MODELS, str(base)], check=True, capture_output=True)
    return base


def run(case: Case, engine: str, out: Path, seconds: float, port: int, server: "subprocess.Popen[str] | None" = None) -> None:
    """One start. server: forks it (only for cases that change nothing before the interpreter begins)."""
    model = out / "models" / case.name
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(prepare(engine, out), model)
    if case.model:
        case.model(model)
    started = time.monotonic()
    with ExitStack() as stack:
        if case.hold_port:
            held = stack.enter_context(socket.socket())
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", port))
            held.listen()
        log = stack.enter_context((out / f"{case.name}.log").open("wb"))
        process: subprocess.Popen[bytes] | Forked
        if server is not None:
            process = Forked(server, command(case, engine, model, port)[3:], environment(case, model), out / f"{case.name}.log")
        else:
            process = subprocess.Popen(
                command(case, engine, model, port),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(case, model),
                start_new_session=True,
            )
        stack.callback(end, process)
        acted, ready_at = case.during is None, None
        while process.poll() is None and time.monotonic() - started < seconds:
            text = (out / f"{case.name}.log").read_text(errors="replace")
            acted = acted or (case.during is not None and case.during(process.pid, text))
            if ready_at is None and healthy(port):
                ready_at = time.monotonic()
            if ready_at and case.outcome == "ready":
                break
            if ready_at and case.outcome == "failed" and time.monotonic() - ready_at > case.grace:
                break
            time.sleep(0.1)
        status = process.poll()
    (out / f"{case.name}.json").write_text(json.dumps({"exit_status": status, "seconds": round(time.monotonic() - started, 1)}))


def command(case: Case, engine: str, model: Path, port: int) -> list[str]:
    eager = ("--enforce-eager",) if case.eager else ()
    target = case.model_name or str(model)
    serve = (engine, "-m", "vllm.entrypoints.cli.main", "serve", target, "--host", "127.0.0.1", "--port", str(port), *eager)
    length = () if "--max-model-len" in case.args else ("--max-model-len", "1024")
    return [*case.prefix, *serve, *length, *case.args]


def environment(case: Case, model: Path) -> dict[str, str]:
    return {**os.environ, **OWN, **{name: value.format(model=model) for name, value in case.env.items()}}


def healthy(port: int) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200)
    return False


def forks(case: Case) -> bool:
    """Whether a start may be forked from a process that has imported vLLM: it has no limits and no logging of its own."""
    return not case.prefix and not case.env


def end(process: "subprocess.Popen[bytes] | Forked") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check(cases: list[Case], out: Path, version: str) -> int:
    """Prints one line a case: expected, found, right or wrong; keeps them in RESULTS; returns how many are wrong."""
    rows: dict[str, dict[str, object]] = {}
    for case in cases:
        if (out / f"{case.name}.log").exists() and (out / f"{case.name}.json").exists():
            rows[case.name] = judged(case, out)
            row = rows[case.name]
            print(
                f"{row['verdict']:8} {case.name:24} {row['outcome']:15} {row['phase'] or '-':16} {row['found'] or '-':32} {row['expected']}"
            )
    keep(version, rows)
    wrong = sum(row["verdict"] == "WRONG" for row in rows.values())
    print(f"{wrong} wrong")
    return wrong


def judged(case: Case, out: Path) -> dict[str, object]:
    """One case's log against what it should be."""
    ended = json.loads((out / f"{case.name}.json").read_text())
    found = diagnose((out / f"{case.name}.log").read_bytes(), exit_status=ended["exit_status"])
    code = found.cause.code if found.cause else None
    right = found.outcome == case.outcome and (code in case.codes if case.codes else code is None)
    verdict = "right" if right else "general" if found.outcome == case.outcome and code in GENERAL else "WRONG"
    if ended["exit_status"] is None and case.outcome == "failed":
        verdict = "unended"
    return {
        "verdict": verdict,
        "expected": " or ".join(case.codes) or case.outcome,
        "outcome": found.outcome,
        "phase": found.phase,
        "found": code,
        "confidence": round(found.cause.confidence, 2) if found.cause else None,
        "exit_status": ended["exit_status"],
        "seconds": ended["seconds"],
    }


def keep(version: str, rows: dict[str, dict[str, object]]) -> None:
    """Adds to the results; several may write at once."""
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        known = json.loads(f.read() or "{}")
        known.setdefault(version, {}).update(rows)
        order = [c.name for c in CASES]
        sorted_rows = {v: {name: known[v][name] for name in order if name in known[v]} for v in sorted(known)}
        f.truncate(0)
        f.write(json.dumps(sorted_rows, indent=1) + "\n")


def table() -> str:
    """The results as a Markdown table, a row a case."""
    known = json.loads(RESULTS.read_text())
    lines = ["| way | expected | " + " | ".join(known) + " |", "|---" * (2 + len(known)) + "|"]
    for case in CASES:
        rows = [known[v].get(case.name) for v in known]
        if any(rows):
            cells = ["" if r is None else f"`{r['found'] or r['outcome']}`" + mark(r) for r in rows]
            lines.append(f"| {case.name} | {' or '.join(f'`{c}`' for c in case.codes) or case.outcome} | {' | '.join(cells)} |")
    counts = [[r["verdict"] for r in known[v].values()] for v in known]
    totals = [f"{c.count('right')} of {len(c) - c.count('unended')} right" for c in counts]
    return "\n".join([*lines, f"| | | {' | '.join(totals)} |"])


def mark(row: dict[str, object]) -> str:
    return {"right": "", "general": " (general)", "WRONG": " **wrong**", "unended": " (did not end)"}[str(row["verdict"])]


def start_all(chosen: list[Case], options: argparse.Namespace) -> None:
    """Every case one after the other; the lock is held for one start at a time, with --forked for all that one process makes."""
    together = [c for c in chosen if options.forked and forks(c)]
    if together:
        prepare(options.python, options.out)
        with ExitStack() as forked:
            hold(options.lock, forked)
            server = subprocess.Popen(
                [options.python, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **OWN}
            )
            forked.callback(server.kill)
            for case in together:
                start(case, options, server)
    for case in chosen:
        if case not in together:
            with ExitStack() as one:
                hold(options.lock, one)
                start(case, options)


def start(case: Case, options: argparse.Namespace, server: "subprocess.Popen[str] | None" = None) -> None:
    run(case, options.python, options.out, options.seconds, options.port, server)
    print(case.name, (options.out / f"{case.name}.json").read_text(), flush=True)


def hold(lock: Path | None, stack: ExitStack) -> None:
    if lock is not None:
        fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--port", type=int, default=8431)
    parser.add_argument("--forked", action="store_true", help="one process imports vLLM and forks for each case")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table or options.out is None:
        print(table())
        return 0
    chosen = [c for c in CASES if not options.only or c.name in options.only.split(",")]
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored, and the engines would inherit that
    if not options.check:
        start_all(chosen, options)
    version = subprocess.run([options.python, "-c", VERSION], check=True, capture_output=True, text=True).stdout.strip()
    return 1 if check(chosen, options.out, version) else 0


if __name__ == "__main__":
    sys.exit(main())
