"""The host around the GPUs: compilers, shared memory, limits, disks, memory, ports."""

from collections.abc import Iterator

from firstlight.catalog import vocabulary
from firstlight.core.findings import Finding
from firstlight.core.machine import Storage
from firstlight.core.units import GIB, MIB, format_bytes, format_seconds, gib
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context

SHM_DOCKER_DEFAULT = 64 * MIB
SHM_COMFORTABLE = GIB
NOFILE_COMFORTABLE, NOFILE_FEW = 65535, 8192  # what vLLM raises its own limit to; below, servers of many streams fail
SLOW_LOAD_SECONDS = 300.0
NETWORK = (
    "nfs",
    "nfs4",
    "lustre",
    "cifs",
    "smb3",
    "smbfs",
    "ceph",
    "glusterfs",
    "beegfs",
    "gpfs",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.sshfs",
)
LAYERED = ("overlay", "fuse-overlayfs", "fuse.fuse-overlayfs", "aufs")
PASSED_THROUGH = ("9p", "virtiofs", "drvfs", "fuse.grpcfuse", "fuse.vmhgfs-fuse", "vboxsf")


def compilers(context: Context) -> Iterator[Finding]:
    """Triton compiles a C stub at start and FlashInfer whole kernels: both need a compiler, the second nvcc and ninja too."""
    assert context.machine is not None
    tools = context.machine.tools
    if context.engine != "vllm" or context.device != "cuda" or context.machine.imagined or not tools:
        return
    if not any(tools.get(name) for name in ("gcc", "clang")) and "CC" not in context.variables:
        yield blocker(
            "torch-compile-host-toolchain",
            "no C compiler: Triton cannot build its launchers, with or without --enforce-eager",
            evidence=["gcc: not on PATH", "clang: not on PATH", "CC: not set"],
            hint="`apt-get install gcc python3-dev` (or the distribution's equivalent), or CC=/path/to/a/compiler",
        )
    absent = [name for name in ("nvcc", "ninja") if not tools.get(name)]
    if absent and not _prebuilt_kernels(context):
        yield warning(
            "kernel-jit-toolchain",
            f"{' and '.join(absent)} absent: kernels that FlashInfer builds at start cannot be built",
            evidence=[f"{name}: not found" for name in absent] + ["flashinfer-cubin: not installed"],
            note="where FlashInfer is chosen for this model and GPU, the start fails or another kernel is used",
            hint="install the CUDA toolkit of the engine's version and ninja, or the package flashinfer-cubin",
        )


def _prebuilt_kernels(context: Context) -> bool:
    """Installed, or part of what the release itself requires."""
    return context.install is None or "flashinfer-cubin" in context.install.packages


def shared_memory(context: Context) -> Iterator[Finding]:
    assert context.machine is not None
    size = context.machine.shm_total_bytes
    if size is None or context.world_size < 2 or context.engine not in ("vllm", "sglang"):
        return
    where = context.machine.container or "this host"
    evidence = [f"/dev/shm: {format_bytes(size)}, {context.world_size} processes share it"]
    hint = "--ipc=host, or --shm-size=16g, on the container" if context.machine.container else "`mount -o remount,size=16G /dev/shm`"
    if size <= SHM_DOCKER_DEFAULT:
        message = f"/dev/shm in {where} is too small for NCCL and the workers' queues"
        yield blocker("shm-too-small", message, evidence=evidence, hint=hint)
    elif size < SHM_COMFORTABLE:
        yield warning("shm-small", f"/dev/shm in {where} is small for several workers", evidence=evidence, hint=hint)


def limits(context: Context) -> Iterator[Finding]:
    assert context.machine is not None
    limits = context.machine.limits
    soft, hard = limits.get("nofile"), limits.get("nofile_hard")
    if "nofile_hard" in limits and hard is not None and hard < NOFILE_COMFORTABLE and context.engine == "vllm":
        yield (warning if hard < NOFILE_FEW else remark)(
            "ulimit-nofile",
            f"at most {hard:,} files can be open: every stream and shard takes one",
            evidence=[f"open files: soft {soft:,}, hard {hard:,}" if soft is not None else f"open files: hard {hard:,}"],
            hint="--ulimit nofile=65535:65535 on the container, LimitNOFILE=65535 in a unit, or /etc/security/limits.conf",
        )
    nodes = context.candidate.nodes if context.candidate else 1
    locked = limits.get("memlock")
    if "memlock" in limits and locked is not None and locked < 64 * GIB and nodes > 1:
        yield warning(
            "ulimit-memlock",
            f"only {format_bytes(locked)} can be locked: RDMA between nodes cannot register its buffers",
            evidence=[f"locked memory: {format_bytes(locked)}"],
            hint="--ulimit memlock=-1 on the container, LimitMEMLOCK=infinity in a unit",
        )


def port(context: Context) -> Iterator[Finding]:
    assert context.machine is not None
    wanted = context.intent.port if context.intent else None
    said = context.option("--port")
    wanted = int(said) if said and said.isdigit() else wanted
    if wanted is None or wanted not in context.machine.ports_in_use:
        return
    free = next(p for p in range(wanted + 1, 65536) if p not in context.machine.ports_in_use)
    yield blocker(
        "port-in-use",
        f"port {wanted} is in use",
        evidence=[f"somebody listens on {wanted}"],
        hint=f"--port {free}; `ss -ltnp 'sport = :{wanted}'` shows who it is",
    )


def _place(context: Context, path: str | None) -> Storage | None:
    """The probed place that a path lies in: the longest that begins it."""
    assert context.machine is not None
    if path is None:
        return None
    fitting = [s for s in context.machine.storage if path == s.path or path.startswith(s.path.rstrip("/") + "/")]
    return max(fitting, key=lambda s: len(s.path), default=None)


def disk(context: Context) -> Iterator[Finding]:
    """Room for what must still be downloaded, and for caches."""
    assert context.machine is not None
    checkpoint = context.checkpoint
    to_fetch = (checkpoint.file_bytes or checkpoint.tensor_bytes) if checkpoint and checkpoint.path is None else None
    places = [s for s in context.machine.storage if s.free_bytes is not None]
    if to_fetch and places:
        roomiest = max(places, key=lambda s: s.free_bytes or 0)
        if (roomiest.free_bytes or 0) < to_fetch:
            yield blocker(
                "disk-space-short",
                f"the checkpoint needs {gib(to_fetch)} on disk and {gib(roomiest.free_bytes)} is free",
                evidence=[f"{s.path}: {gib(s.free_bytes)} free of {gib(s.total_bytes)}, {s.filesystem}" for s in places],
                hint="HF_HOME=/a/larger/disk, or free space there",
            )
    full = [s for s in places if (s.free_bytes or 0) < GIB and s.filesystem not in ("squashfs", "iso9660")]
    if full:
        yield warning(
            "disk-almost-full",
            "a place that is written to has less than 1 GiB free",
            evidence=[f"{s.path}: {format_bytes(s.free_bytes)} free of {format_bytes(s.total_bytes)}" for s in full],
            hint="free space there; compile caches and logs grow by gigabytes",
        )


def filesystem(context: Context) -> Iterator[Finding]:
    place = _place(context, context.checkpoint.path if context.checkpoint else None)
    kind = place.filesystem if place else None
    if place is None or kind is None or context.engine not in ("vllm", "sglang"):
        return
    flags = ("--safetensors-load-strategy", "--load-format")
    chosen = [f for f in flags if context.option(f)]
    if kind in NETWORK and not chosen:
        strategy = vocabulary.has("flags", "--safetensors-load-strategy", context.version)
        yield remark(
            "slow-storage-network",
            f"the checkpoint is on {kind}: mapping shards into memory reads them in small pieces",
            evidence=[f"{place.path}: {kind}{_speed(place)}"],
            hint="-- --safetensors-load-strategy prefetch" if strategy else "copy the checkpoint to a local disk",
        )
    elif kind in PASSED_THROUGH:
        yield warning(
            "slow-storage-9p",
            f"the checkpoint is on {kind}, a folder passed through from another system: about 0.2 GB/s were seen",
            evidence=[f"{place.path}: {kind}{_speed(place)}"],
            hint="copy the checkpoint to a disk of this system",
        )
    elif kind in LAYERED:
        yield remark(
            "checkpoint-in-container-layer",
            f"the checkpoint is on {kind}, a container's own layer: it goes when the container goes",
            evidence=[f"{place.path}: {kind}{_speed(place)}"],
            hint="-v /a/folder/of/the/host:/models on the container, and the checkpoint there",
        )


def _speed(place: Storage) -> str:
    rate = place.read_bytes_per_second
    return f", reads {rate / 1e9:.2f} GB/s (measured)" if rate else ""


def load_time(context: Context) -> Iterator[Finding]:
    """Bytes over the measured speed, where that is minutes."""
    place = _place(context, context.checkpoint.path if context.checkpoint else None)
    size = context.checkpoint.file_bytes if context.checkpoint else None
    rate = place.read_bytes_per_second if place else None
    if place is not None and size and rate and size / rate > SLOW_LOAD_SECONDS:
        yield remark(
            "slow-load",
            f"reading the checkpoint from this disk takes about {format_seconds(size / rate)}",
            evidence=[f"{gib(size)} at {rate / 1e9:.2f} GB/s (measured on {place.path}, direct I/O)"],
            hint="a faster disk, or several loads of the same files: the page cache holds what fits in memory",
        )


def memory(context: Context) -> Iterator[Finding]:
    """Host memory against the checkpoint and the container's limit."""
    assert context.machine is not None
    machine, size = context.machine, context.checkpoint.file_bytes if context.checkpoint else None
    limit, total = machine.cgroup_memory_limit_bytes, machine.memory_total_bytes
    usable = min(n for n in (limit, total) if n) if limit or total else None
    if usable is None or not size or machine.imagined:
        return
    if context.device != "cpu" and size > usable:
        yield remark(
            "page-cache-smaller-than-checkpoint",
            "the checkpoint is larger than host memory: every start reads it from disk again",
            evidence=[f"checkpoint {gib(size)}", f"host memory {gib(total)}" + (f", limited to {gib(limit)}" if limit else "")],
        )
    available = machine.memory_available_bytes
    room = min(n for n in (available, limit) if n) if available or limit else None
    if context.device == "cpu" and room is not None and size > room:
        yield blocker(
            "host-memory-short",
            "the weights do not fit into this host's memory",
            evidence=[f"weights {gib(size)}", f"available {gib(available)}" + (f", limited to {gib(limit)}" if limit else "")],
            hint="a smaller quantization, or a host with more memory",
        )


def small_cgroup(context: Context) -> Iterator[Finding]:
    """A container's limit that an engine's own start may not fit in, whatever the model. The bound is a rule of thumb, not a figure."""
    assert context.machine is not None
    limit = context.machine.cgroup_memory_limit_bytes
    if limit is not None and context.engine == "vllm" and limit < 2 * GIB + 3 * GIB * context.world_size:
        yield warning(
            "cgroup-memory-tight",
            f"this container may use {gib(limit)} of host memory, and each worker takes gigabytes before any weight",
            evidence=[f"memory limit {gib(limit)}, workers {context.world_size}"],
            hint="a higher --memory on the container, or MemoryMax= in the unit",
        )


CHECKS = (
    Check("compilers", ("machine",), compilers),
    Check("shared-memory", ("machine", "candidate"), shared_memory),
    Check("limits", ("machine",), limits),
    Check("port", ("machine",), port),
    Check("disk", ("machine",), disk),
    Check("filesystem", ("machine", "checkpoint"), filesystem),
    Check("load-time", ("machine", "checkpoint"), load_time),
    Check("memory", ("machine", "checkpoint"), memory),
    Check("container-memory", ("machine", "candidate"), small_cgroup),
)
