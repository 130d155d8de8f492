"""The ways in which break_vllm.py breaks a start and what `diagnose` may say of each: models changed, flags, variables, limits, signals."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


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
        one = {"handlers": ["json"], "level": "INFO", "propagate": False}
        loggers = {"vllm": one, "uvicorn": one}  # without the second the server never says that it is up
        config = {"version": 1, "formatters": {"json": form}, "handlers": {"json": handler}, "loggers": loggers}
        (folder / "logging.json").write_text(json.dumps(config))
        if change:
            change(folder)

    return act


def mounted(folder: str, options: str) -> tuple[str, ...]:
    """What starts the engine in a mount namespace of its own, with a tmpfs of these options at a folder."""
    return ("unshare", "-m", "bash", "-c", f'mkdir -p {folder}; mount -t tmpfs -o {options} none {folder}; exec "$@"', "_")


JSON_FORMAT = "%(asctime)s %(levelname)s %(name)s %(processName)s %(process)d %(message)s"
JSON_LOGGING = {"VLLM_LOGGING_CONFIG_PATH": "{model}/logging.json"}
LIMIT_MEMORY = 'd=/sys/fs/cgroup/memory/fl-break; mkdir -p $d; echo 1200M > $d/memory.limit_in_bytes; echo $$ > $d/cgroup.procs; exec "$@"'
MOUNTED_CACHES = {"VLLM_CACHE_ROOT": "/mnt/fl-full/v", "TORCHINDUCTOR_CACHE_DIR": "/mnt/fl-full/i"}
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
    # Releases that do not look at the index load what is there, and miss its tensors afterwards.
    Case("shard-missing", ("checkpoint-shard-missing", "weights-not-initialized"), model=lambda f: shards(f)[1].unlink()),
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
    # 0.27.1 prints nothing of the signal that its core gets; of 1.5 GB of address space either memory, threads or a crash is told.
    Case("stopped", ("stopped-while-starting", "process-vanished"), during=send("EngineCore", "Starting to load", signal.SIGTERM)),
    Case("ulimit-files", ("ulimit-nofile",), prefix=("bash", "-c", 'ulimit -n 30; exec "$@"', "_")),
    Case(
        "memory-limit",
        ("host-ram-oom",),
        env={"VLLM_CPU_KVCACHE_SPACE": "8"},
        prefix=("bash", "-c", 'ulimit -v 5000000; exec "$@"', "_"),
    ),
    Case("address-space", ("host-ram-oom", "ulimit-nproc", "process-crashed"), prefix=("bash", "-c", 'ulimit -v 1500000; exec "$@"', "_")),
    Case("thread-limit", ("ulimit-nproc",), prefix=("bash", "-c", 'ulimit -s 2000000; ulimit -v 12000000; exec "$@"', "_")),
    Case(
        "shm-small",
        ("shm-too-small",),
        ("-tp", "2"),
        prefix=mounted("/dev/shm", "size=64k"),
    ),
    Case("disk-full", ("no-space-left",), env=MOUNTED_CACHES, prefix=mounted("/mnt/fl-full", "size=64k"), eager=False),
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
    Case("cache-read-only", ("read-only-file-system",), env=MOUNTED_CACHES, prefix=mounted("/mnt/fl-full", "ro"), eager=False),
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
