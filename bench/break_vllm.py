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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from firstlight.diagnose.diagnose import diagnose

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


@dataclass(frozen=True)
class Case:
    """One way to break a start. model: changes a copy of the model folder. during: acts on the running process (pid, log) until True.

    codes: what `diagnose` may say. env: `{model}` stands for the copy's folder. outcome: the expected outcome.
    """

    name: str
    codes: tuple[str, ...]
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    model: Callable[[Path], None] | None = None
    during: Callable[[int, str], bool] | None = None
    hold_port: bool = False
    prefix: tuple[str, ...] = ()
    model_name: str | None = None
    outcome: str = "failed"
    eager: bool = True
    grace: float = 20.0


def edit(file: str, change: Callable[[dict[str, object]], None]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / file
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))

    return act


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def cut(folder: Path) -> None:
    last = shards(folder)[-1]
    last.write_bytes(last.read_bytes()[:-4096])


def rewrite_tensors(change: str) -> Callable[[Path], None]:
    """Changes one shard through its header: `drop` a tensor, `rename` one, `shape` halves one."""

    def act(folder: Path) -> None:
        path = next(p for p in shards(folder) if b"mlp.down_proj" in p.read_bytes()[:20000])
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        name = next(k for k in header if "mlp.down_proj" in k)
        if change == "shape":
            header[name]["shape"] = list(reversed(header[name]["shape"]))
        elif change == "rename":
            header[name.replace("down_proj", "extra_proj")] = header.pop(name)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size :])

    return act


def child(pid: int, name: str) -> int | None:
    """The pid of a descendant whose command line contains a name."""
    found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout.splitlines()[1:]
    rows = [(int(a), int(b), c) for a, b, c in (line.split(None, 2) for line in found)]
    family, grown = {pid}, True
    while grown:
        new = {p for p, parent, _ in rows if parent in family} - family
        family, grown = family | new, bool(new)
    return next((p for p, _, args in rows if p in family and p != pid and name in args), None)


def send(process: str, mark: str, number: signal.Signals) -> Callable[[int, str], bool]:
    """Sends a signal to a child process once the log contains a mark."""

    def act(pid: int, log: str) -> bool:
        if mark not in log:
            return False
        target = child(pid, process)
        if target is not None:
            os.kill(target, number)
        return target is not None

    return act


def signal_server(mark: str, number: signal.Signals, group: bool = False) -> Callable[[int, str], bool]:
    """Sends a signal to the server's own process, or to its whole group as Ctrl-C does, once the log contains a mark."""

    def act(pid: int, log: str) -> bool:
        if mark not in log:
            return False
        (os.killpg if group else os.kill)(pid, number)
        return True

    return act


def pointer(file: str) -> Callable[[Path], None]:
    """Leaves what a clone without git-lfs leaves of a large file."""

    def act(folder: Path) -> None:
        path = shards(folder)[0] if file == "shard" else folder / file
        size = path.stat().st_size
        path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize {size}\n")

    return act


def own_code(folder: Path) -> None:
    """A model with its own configuration class, whose module imports what is not installed."""
    (folder / "c.py").write_text("import nosuchpackage\nfrom transformers import LlamaConfig\n\n\nclass C(LlamaConfig):\n    pass\n")
    edit("config.json", lambda c: c.update(model_type="own", auto_map={"AutoConfig": "c.C"}))(folder)


def with_json_logging(change: Callable[[Path], None] | None) -> Callable[[Path], None]:
    """Puts a logging configuration beside the model (VLLM_LOGGING_CONFIG_PATH names it): every record one line of JSON."""

    def act(folder: Path) -> None:
        handler = {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stdout"}
        form = {"class": "pythonjsonlogger.jsonlogger.JsonFormatter", "format": JSON_FORMAT}
        loggers = {"vllm": {"handlers": ["json"], "level": "INFO", "propagate": False}}
        config = {"version": 1, "formatters": {"json": form}, "handlers": {"json": handler}, "loggers": loggers}
        (folder / "logging.json").write_text(json.dumps(config))
        if change:
            change(folder)

    return act


JSON_FORMAT = "%(asctime)s %(levelname)s %(name)s %(processName)s %(process)d %(message)s"
JSON_LOGGING = {"VLLM_LOGGING_CONFIG_PATH": "{model}/logging.json"}
LIMIT_MEMORY = 'd=/sys/fs/cgroup/memory/fl-break; mkdir -p $d; echo 1200M > $d/memory.limit_in_bytes; echo $$ > $d/cgroup.procs; exec "$@"'
KILLED = ("process-killed", "process-vanished", "host-ram-oom")

CASES = [
    Case("flag-unknown", ("flag-unknown",), ("--no-such-flag",)),
    Case("flag-value", ("flag-value-invalid",), ("--dtype", "float12")),
    Case("flag-json", ("flag-value-invalid",), ("--compilation-config", "{mode: 3")),
    Case("flag-number", ("flag-value-invalid",), ("--max-num-seqs", "many")),
    Case("port", ("port-in-use",), hold_port=True),
    Case("model-missing", ("model-not-found",), model_name="/nonexistent/model"),
    Case("hub-offline", ("hub-offline",), model_name="nobody/no-such-model"),
    Case("config-json", ("config-json-invalid",), model=lambda f: (f / "config.json").write_text('{"model_type": "llama", ') and None),
    Case("config-absent", ("model-config-missing",), model=lambda f: (f / "config.json").unlink()),
    Case("architecture", ("engine-too-old-for-arch",), model=edit("config.json", lambda c: c.update(architectures=["NoSuchForCausalLM"]))),
    Case(
        "model-type",
        ("transformers-too-old", "engine-too-old-for-arch"),
        model=edit("config.json", lambda c: c.update(model_type="nosuch")),
    ),
    Case(
        "remote-code",
        ("trust-remote-code-needed",),
        model=edit("config.json", lambda c: c.update(model_type="own", auto_map={"AutoConfig": "c.C"})),
    ),
    Case("shard-cut", ("checkpoint-shard-corrupt",), model=cut),
    Case("shard-junk", ("checkpoint-shard-corrupt",), model=lambda f: shards(f)[0].write_bytes(b"\xff" * 5000) and None),
    Case("shard-missing", ("checkpoint-shard-missing",), model=lambda f: shards(f)[1].unlink()),
    Case("weights-none", ("weights-not-found",), model=lambda f: [p.unlink() for p in shards(f)] and None),
    Case("tensor-renamed", ("weights-not-initialized", "weight-name-unknown"), model=rewrite_tensors("rename")),
    Case("tensor-shape", ("weight-shape-mismatch",), model=rewrite_tensors("shape")),
    Case("vocab", ("weight-shape-mismatch",), model=edit("config.json", lambda c: c.update(vocab_size=640))),
    Case("tp-heads", ("tp-heads-not-divisible", "world-size-too-large"), ("-tp", "3")),
    Case("max-len", ("max-model-len-too-large",), ("--max-model-len", "65536")),
    Case("batched-tokens", ("bad-flag-combination",), ("--max-num-batched-tokens", "16", "--max-num-seqs", "64")),
    Case(
        "kv-small",
        ("kv-too-small-for-max-len",),
        ("--max-model-len", "4000000"),
        model=edit("config.json", lambda c: c.update(max_position_embeddings=4000000)),
    ),
    Case("kv-blocks", ("kv-too-small-for-max-len", "no-memory-for-cache-blocks"), ("--num-gpu-blocks-override", "1")),
    Case("tokenizer-absent", ("tokenizer-not-found",), model=lambda f: [p.unlink() for p in f.glob("tokenizer*")] and None),
    Case("tokenizer-corrupt", ("tokenizer-invalid",), model=lambda f: (f / "tokenizer.json").write_text("{}") and None),
    Case("chat-template", ("chat-template-invalid",), ("--chat-template", "/nonexistent/template.jinja")),
    Case("quantization-unknown", ("quantization-unsupported",), ("--quantization", "nosuch")),
    Case(
        "quantization-mismatch",
        ("quantization-flag-mismatch",),
        ("--quantization", "fp8"),
        model=edit(
            "config.json", lambda c: c.update(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})
        ),
    ),
    Case(
        "quantization-platform",
        ("quantization-unsupported",),
        model=edit("config.json", lambda c: c.update(quantization_config={"quant_method": "nosuch"})),
    ),
    Case("lora-missing", ("lora-adapter-not-found",), ("--enable-lora", "--lora-modules", "a=/nonexistent/adapter")),
    Case("tool-parser", ("bad-flag-combination",), ("--enable-auto-tool-choice",)),
    Case("tool-parser-unknown", ("parser-unknown",), ("--enable-auto-tool-choice", "--tool-call-parser", "nosuch")),
    Case("reasoning-parser", ("parser-unknown",), ("--reasoning-parser", "nosuch")),
    Case("speculative", ("speculative-config-invalid",), ("--speculative-config", '{"method": "nosuch", "num_speculative_tokens": 2}')),
    Case(
        "speculative-draft",
        ("model-not-found", "hub-offline", "model-config-missing"),
        ("--speculative-config", '{"model": "nobody/draft", "num_speculative_tokens": 2}'),
    ),
    Case("utilization", ("flag-value-invalid",), ("--gpu-memory-utilization", "1.5")),
    Case("attention", ("attn-backend-invalid",), ("--attention-backend", "NO_SUCH")),
    Case("load-format", ("flag-value-invalid", "load-format-unsupported"), ("--load-format", "nosuch")),
    Case("kv-transfer", ("kv-connector-invalid",), ("--kv-transfer-config", '{"kv_connector": "NoSuchConnector", "kv_role": "kv_both"}')),
    Case("certificate", ("file-not-found",), ("--ssl-keyfile", "/nonexistent/key.pem", "--ssl-certfile", "/nonexistent/cert.pem")),
    Case("logging-config", ("logging-config-invalid",), env={"VLLM_LOGGING_CONFIG_PATH": "/nonexistent/log.json"}),
    Case("dp-local", ("bad-flag-combination",), ("--data-parallel-size", "2", "--data-parallel-size-local", "3")),
    Case("stopped", ("stopped-while-starting",), during=send("EngineCore", "Starting to load", signal.SIGTERM)),
    Case("ulimit-files", ("ulimit-nofile",), prefix=("bash", "-c", 'ulimit -n 30; exec "$@"', "_")),
    Case(
        "memory-limit",
        ("host-ram-oom",),
        env={"VLLM_CPU_KVCACHE_SPACE": "8"},
        prefix=("bash", "-c", 'ulimit -v 5000000; exec "$@"', "_"),
    ),
    Case("address-space", ("host-ram-oom",), prefix=("bash", "-c", 'ulimit -v 1500000; exec "$@"', "_")),
    Case("thread-limit", ("ulimit-nproc",), prefix=("bash", "-c", 'ulimit -s 2000000; ulimit -v 12000000; exec "$@"', "_")),
    Case(
        "shm-small",
        ("shm-too-small",),
        ("-tp", "2"),
        prefix=("unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=64k none /dev/shm; exec "$@"', "_"),
    ),
    Case(
        "disk-full",
        ("no-space-left",),
        env={"VLLM_CACHE_ROOT": "/mnt/fl-full/v", "TORCHINDUCTOR_CACHE_DIR": "/mnt/fl-full/i"},
        prefix=("unshare", "-m", "bash", "-c", 'mkdir -p /mnt/fl-full; mount -t tmpfs -o size=64k none /mnt/fl-full; exec "$@"', "_"),
        eager=False,
    ),
    Case("engine-killed", KILLED, during=send("EngineCore", "Initializing a V1", signal.SIGKILL)),
    Case("worker-killed", KILLED, during=send("Worker", "Starting to load", signal.SIGKILL)),
    Case("worker-segfault", ("process-crashed", "process-vanished"), during=send("Worker", "Starting to load", signal.SIGSEGV)),
    Case(
        "worker-killed-serving",
        KILLED,
        during=send("Worker", "Application startup complete", signal.SIGKILL),
        outcome="serving-failed",
    ),
    Case("server-killed", ("process-killed",), during=signal_server("Starting to load", signal.SIGKILL)),
    Case("server-stopped", ("stopped-while-starting",), during=signal_server("Starting to load", signal.SIGTERM)),
    Case("interrupted", ("stopped-while-starting",), during=signal_server("Starting to load", signal.SIGINT, group=True)),
    Case("oom-killed", KILLED, prefix=("bash", "-c", LIMIT_MEMORY, "_")),
    Case(
        "cache-read-only",
        ("read-only-file-system",),
        env={"VLLM_CACHE_ROOT": "/mnt/fl-full/v", "TORCHINDUCTOR_CACHE_DIR": "/mnt/fl-full/i"},
        prefix=("unshare", "-m", "bash", "-c", 'mkdir -p /mnt/fl-full; mount -t tmpfs -o ro none /mnt/fl-full; exec "$@"', "_"),
        eager=False,
    ),
    Case("host-address", ("port-not-permitted",), ("--host", "203.0.113.7")),
    Case("env-number", ("environment-invalid",), env={"VLLM_CPU_KVCACHE_SPACE": "many"}),
    Case("env-choice", ("environment-invalid", "logging-config-invalid"), env={"VLLM_LOGGING_LEVEL": "NOSUCH"}),
    Case("kv-space", ("does-not-fit", "host-ram-oom", "no-memory-for-cache-blocks"), env={"VLLM_CPU_KVCACHE_SPACE": "500"}),
    Case("shard-pointer", ("checkpoint-shard-corrupt",), model=pointer("shard")),
    Case("shard-empty", ("checkpoint-shard-corrupt",), model=lambda f: shards(f)[-1].write_bytes(b"") and None),
    Case("config-pointer", ("config-json-invalid",), model=pointer("config.json")),
    Case("tokenizer-pointer", ("tokenizer-invalid", "config-json-invalid"), model=pointer("tokenizer.json")),
    Case(
        "index-cut",
        ("config-json-invalid", "checkpoint-shard-corrupt"),
        model=lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {') and None,
    ),
    Case("layers-more", ("weights-not-initialized",), model=edit("config.json", lambda c: c.update(num_hidden_layers=6))),
    Case("layers-fewer", ("weight-name-unknown",), model=edit("config.json", lambda c: c.update(num_hidden_layers=3))),
    Case("kv-heads", ("weight-shape-mismatch",), model=edit("config.json", lambda c: c.update(num_key_value_heads=4))),
    Case(
        "rope",
        ("model-config-unsupported", "config-refused"),
        model=edit("config.json", lambda c: c.update(rope_scaling={"rope_type": "nosuch", "factor": 2.0})),
    ),
    Case(
        "dtype-config",
        ("dtype-unsupported", "model-config-unsupported", "config-refused"),
        model=edit("config.json", lambda c: c.update(torch_dtype="float99", dtype="float99")),
    ),
    Case("own-code-import", ("dependency-missing", "remote-code-failed"), ("--trust-remote-code",), model=own_code),
    Case("loader-missing", ("dependency-missing",), ("--load-format", "runai_streamer")),
    Case("bitsandbytes", ("dependency-missing", "quantization-unsupported"), ("--quantization", "bitsandbytes")),
    Case(
        "kv-dtype",
        ("attn-backend-unsupported-kv-dtype", "attn-backend-unsupported", "flag-value-invalid"),
        ("--kv-cache-dtype", "nvfp4"),
    ),
    Case("middleware", ("plugin-failed", "dependency-missing", "flag-value-invalid"), ("--middleware", "nosuch.Thing")),
    Case("overrides-json", ("flag-value-invalid",), ("--hf-overrides", '{"architectures": [')),
    Case("lora-rank", ("flag-value-invalid", "lora-rank-limit"), ("--enable-lora", "--max-lora-rank", "3")),
    Case("json-log", ("checkpoint-shard-corrupt",), env=JSON_LOGGING, model=with_json_logging(cut)),
    Case("json-log-healthy", (), env=JSON_LOGGING, model=with_json_logging(None), outcome="ready"),
    Case("compiled", (), outcome="ready", eager=False),
    Case("healthy", (), outcome="ready"),
]


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
    verdict = "unended" if ended["exit_status"] is None and case.outcome == "failed" else "right" if right else "WRONG"
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
    return {"right": "", "WRONG": " **wrong**", "unended": " (did not end)"}[str(row["verdict"])]


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
    if not options.check:
        start_all(chosen, options)
    version = subprocess.run([options.python, "-c", VERSION], check=True, capture_output=True, text=True).stdout.strip()
    return 1 if check(chosen, options.out, version) else 0


if __name__ == "__main__":
    sys.exit(main())
