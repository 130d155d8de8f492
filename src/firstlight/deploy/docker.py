"""The same container as one `docker run`."""

import shlex

from firstlight.deploy.container import Mount, comment, container
from firstlight.deploy.deployment import Deployment


def render(deployment: Deployment) -> dict[str, str]:
    spec = container(deployment)
    words = ["docker", "run", "--detach", "--name", spec.name, "--init", "--user", spec.user]
    words += ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--tmpfs", "/tmp:exec,mode=1777"]
    words += ["--ipc", "private", "--shm-size", str(spec.shm_bytes)]
    words += ["--ulimit", "memlock=-1", "--ulimit", "stack=67108864", "--ulimit", "nofile=1048576"]
    words += ["--restart", "on-failure:5", "--stop-timeout", str(spec.stop_seconds)]
    words += ["--publish", f"{f'[{spec.bind}]' if ':' in spec.bind else spec.bind}:{spec.port}:{spec.port}"]
    if spec.gpus:
        # docker reads the value as CSV: several indices need quotes of their own
        words += ["--gpus", "all" if spec.device_ids is None else f'"device={",".join(spec.device_ids)}"']
    words += [w for k, v in sorted(spec.environment.items()) for w in ("--env", f"{k}={v}")]
    words += [w for m in spec.mounts for w in ("--mount", mount_option(m))]
    words += ["--health-cmd", spec.health, "--health-interval", "60s", "--health-timeout", "75s", "--health-retries", "3"]
    words += ["--health-start-period", f"{spec.start_seconds}s", "--entrypoint", "/bin/sh", spec.image, "-c", spec.script]
    return {"docker-run.sh": f"#!/bin/sh\n# {spec.title} as it was verified\n{comment(spec.note)}exec {_folded(words)}\n"}


def mount_option(mount: Mount) -> str:
    """`--mount` is CSV: a field with a comma or a quote is quoted."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target or mount.source}"]
    fields += ["readonly"] if mount.read_only else []
    return ",".join('"' + f.replace('"', '""') + '"' if "," in f or '"' in f else f for f in fields)


def _folded(words: list[str]) -> str:
    """An option a line."""
    lines, line = [], [shlex.quote(words[0]), shlex.quote(words[1])]
    for word in words[2:]:
        if word.startswith("--"):
            lines.append(" ".join(line))
            line = []
        line.append(shlex.quote(word))
    return " \\\n  ".join([*lines, " ".join(line)])
