"""A compose file: one service, loopback unless the plan says otherwise, not privileged, nothing writable but caches."""

from typing import Any

import yaml

from firstlight.deploy.container import SECRET, Container, Mount, comment, container
from firstlight.deploy.deployment import Deployment


class _Dumper(yaml.SafeDumper):
    """Long lines stay whole, so that a command can be read and copied."""


def render(deployment: Deployment) -> dict[str, str]:
    spec = container(deployment)
    document: dict[str, Any] = {"services": {spec.name: _service(spec)}}
    if any(m.target == SECRET for m in spec.mounts):
        source = next(m.source for m in spec.mounts if m.target == SECRET)
        document["secrets"] = {"api-key": {"file": _literal(source)}}
    head = f"# {spec.title} as it was verified. Start: docker compose up -d --wait\n" + comment(spec.note)
    # the old docker-compose wants a version, the new one ignores it
    text = yaml.dump({"version": "3.8", **document}, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return {"compose.yaml": head + text}


def _service(spec: Container) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": spec.image,
        "container_name": spec.name,
        "init": True,
        "entrypoint": ["/bin/sh", "-c"],
        "command": [_literal(spec.script)],
        "user": spec.user,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp:exec,mode=1777"],
        "ipc": "private",
        "shm_size": str(spec.shm_bytes),
        "ulimits": {"memlock": {"soft": -1, "hard": -1}, "stack": 67108864, "nofile": {"soft": 1048576, "hard": 1048576}},
        "environment": {k: _literal(v) for k, v in sorted(spec.environment.items())},
        "volumes": [_volume(m) for m in spec.mounts if m.target is None],
        "ports": [f"{_bracketed(spec.bind)}:{spec.port}:{spec.port}"],
        "restart": "on-failure:5",
        "stop_grace_period": f"{spec.stop_seconds}s",
        "healthcheck": {
            "test": ["CMD-SHELL", _literal(spec.health)],
            "interval": "60s",
            "timeout": "75s",
            "retries": 3,
            "start_period": f"{spec.start_seconds}s",
        },
    }
    if any(m.target == SECRET for m in spec.mounts):
        service["secrets"] = ["api-key"]
    if spec.gpus:
        wanted = {"device_ids": spec.device_ids} if spec.device_ids is not None else {"count": "all"}
        device = {"driver": "nvidia", **wanted, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return service


def _volume(mount: Mount) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": _literal(mount.source),
        "target": _literal(mount.target or mount.source),
        "read_only": mount.read_only,
    }


def _literal(text: str) -> str:
    """Compose fills in `$NAME`; what is meant as it stands is doubled."""
    return text.replace("$", "$$")


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
