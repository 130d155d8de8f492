"""A deployment as a container of the engine's official image: what compose, Quadlet and `docker run` have in common. Pure."""

import json
import shlex

from msgspec import Struct

from firstlight.core.errors import UsageError
from firstlight.core.units import GIB
from firstlight.deploy.deployment import Deployment, cache_places, model_places
from firstlight.engines.command import option_value

SECRET = "/run/secrets/api-key"
_PROGRAMS = {"vllm": ["vllm", "serve"], "llamacpp": ["/app/llama-server"]}
_FIRST_FLAG = {"vllm": "serve", "llamacpp": "--model"}
NOBODY = 10001
QUESTION, ANSWER = "Name the capital of France.", "paris"


class Mount(Struct, frozen=True, kw_only=True):
    """The same path inside as outside, so that the links of an overlay hold; `target` only for the key."""

    source: str
    read_only: bool
    target: str | None = None


class Container(Struct, frozen=True, kw_only=True):
    """title: the model's name for a comment, one line whatever it holds. image: with its tag. note: what the user has to do, or "".

    script: what /bin/sh runs, the engine replaces it. device_ids: GPUs by index or uuid, None for all; gpus: any at all.

    health: a shell line that exits 0 after an answer that makes sense. start_seconds: how long the first one may take.
    """

    name: str
    title: str
    note: str
    image: str
    script: str
    user: str
    environment: dict[str, str]
    mounts: list[Mount]
    bind: str
    port: int
    gpus: bool
    device_ids: list[str] | None
    shm_bytes: int
    health: str
    start_seconds: int
    stop_seconds: int


def container(deployment: Deployment) -> Container:
    """Raises UsageError `several-nodes`, `no-official-image`."""
    launch = deployment.launch
    if deployment.nodes > 1:
        raise UsageError("several-nodes", "the plan spans several machines", evidence=(f"nodes: {deployment.nodes}",))
    if launch.engine not in _PROGRAMS:
        raise UsageError("no-official-image", f"no image is known for {launch.engine!r}", hint="vllm and llamacpp have one")
    mounts = [Mount(source=p, read_only=True) for p in model_places(deployment)]
    mounts += [Mount(source=p, read_only=False) for p in cache_places(deployment)]
    mounts += [Mount(source=deployment.key_file, read_only=True, target=SECRET)] if deployment.key_file else []
    return Container(
        name=f"firstlight-{deployment.name}",
        title=" ".join("".join(c if c.isprintable() else " " for c in deployment.endpoint.model).split()),
        note=_note(deployment),
        image=image_of(deployment),
        script=_script(deployment),
        user=f"{deployment.uid or NOBODY}:{deployment.gid or NOBODY}",
        environment=_environment(deployment),
        mounts=mounts,
        bind=launch.host if launch.host not in ("", "localhost") else "127.0.0.1",
        port=launch.port,
        gpus=deployment.gpu_count > 0,
        device_ids=[str(g) for g in deployment.gpus] if deployment.gpus is not None else None,
        shm_bytes=16 * GIB if deployment.ranks > 1 else 2 * GIB,
        health=_health(deployment),
        start_seconds=int(max(120.0, 3 * (deployment.ready_seconds or 200.0))),
        stop_seconds=int(launch.stop_grace_seconds + 15),
    )


def _note(deployment: Deployment) -> str:
    """Root's files are served by a user who is nobody: a key that only root may read is not read."""
    if deployment.uid or deployment.key_file is None:
        return ""
    return f"The container runs as {NOBODY}, who must be able to read the key: chown {NOBODY} {shlex.quote(deployment.key_file)}"


def comment(note: str) -> str:
    """One line of a file, whatever a path holds; nothing for nothing."""
    return "# " + "".join(c if c.isprintable() else " " for c in note) + "\n" if note else ""


def image_of(deployment: Deployment) -> str:
    """vLLM's image by release; llama.cpp's server, which is tagged by build and not by version."""
    if deployment.launch.engine == "vllm":
        release = (deployment.version or "").partition("+")[0]
        if not release:
            raise UsageError("no-official-image", "the engine's version is not known, and the image is tagged by it")
        return f"vllm/vllm-openai{'' if deployment.gpu_count else '-cpu'}:v{release}"
    return f"ghcr.io/ggml-org/llama.cpp:server{'-cuda' if deployment.gpu_count else ''}"


def engine_argv(deployment: Deployment) -> list[str]:
    """The verified flags behind the image's own program; inside, it listens at every address, and only the published one is reachable."""
    launch = deployment.launch
    flags = launch.argv[launch.argv.index(_FIRST_FLAG[launch.engine]) :]
    flags = flags[1:] if launch.engine == "vllm" else flags
    if "--host" in flags:
        flags = [*flags]
        flags[flags.index("--host") + 1] = "0.0.0.0"
    return [*_PROGRAMS[launch.engine], *flags]


def _script(deployment: Deployment) -> str:
    """The key goes from its file into the environment of the engine's own process: `inspect` and the process list never show it.

    A key that cannot be read, or is empty, ends the start: an engine without one would answer everybody.
    """
    refuse = "{ echo 'the key cannot be read' >&2; exit 1; }"
    reads = [f'{name}="$(cat {SECRET})"; [ -n "${name}" ] || {refuse}; export {name}; ' for name in deployment.launch.secret_files]
    return f"{''.join(reads)}exec {shlex.join(engine_argv(deployment))}"


def _environment(deployment: Deployment) -> dict[str, str]:
    """The plan's variables. A user without an entry in the image's passwd needs a name and a home, or torch's compiler fails."""
    launch = deployment.launch
    chosen = {k: v for k, v in launch.env.items() if k != "CUDA_VISIBLE_DEVICES"}
    return {"HOME": "/tmp", "USER": "firstlight", "LOGNAME": "firstlight", **chosen, "HF_HUB_OFFLINE": "1"}


def _health(deployment: Deployment) -> str:
    """One greedy answer, judged by its text. The key reaches curl on standard input, never as an argument."""
    launch = deployment.launch
    messages = [{"role": "user", "content": QUESTION}]
    body = {"model": launch.served_model_name, "messages": messages, "max_tokens": 64, "temperature": 0}
    url = f"http://127.0.0.1:{launch.port}/v1/chat/completions"
    ask = f"curl -fsS -m 60 -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))} {url}"
    if launch.secret_files:
        ask = f'printf \'header = "Authorization: Bearer %s"\\n\' "$(cat {SECRET})" | {ask} -K -'
    return f"{ask} | grep -qi {ANSWER if deployment.known_answer else _SOME_TEXT}"


_SOME_TEXT = shlex.quote(r'"content": *"[^"]*[[:alpha:]]\{2\}')


def parallel_ranks(argv: list[str]) -> int:
    """Processes that share memory: the product of vLLM's parallel sizes."""
    flags = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))
    sizes = [option_value(argv, *names) for names in flags]
    product = 1
    for size in sizes:
        product *= int(size) if size and size.isdigit() else 1
    return product
