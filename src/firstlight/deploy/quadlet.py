"""The same container as a Quadlet file: podman's generator makes a systemd unit of it."""

from firstlight.core.errors import UsageError
from firstlight.deploy.container import Container, Mount, comment, container
from firstlight.deploy.deployment import Deployment
from firstlight.deploy.unit import BURST, one_line, refuse_unspeakable, rest_of_line, start_limit_seconds


def render(deployment: Deployment) -> dict[str, str]:
    spec = container(deployment)
    sections = {
        "Unit": [
            ("Description", one_line(f"{deployment.endpoint.model} at {deployment.endpoint.base_url}")),
            ("StartLimitIntervalSec", str(start_limit_seconds(deployment))),
            ("StartLimitBurst", str(BURST)),
        ],
        "Container": _container(spec),
        "Service": [("Restart", "on-failure"), ("RestartSec", "5"), ("TimeoutStartSec", str(spec.start_seconds))],
        "Install": [("WantedBy", "default.target")],
    }
    head = f"# Into /etc/containers/systemd/, then: systemctl daemon-reload; systemctl start {spec.name}\n"
    head += "# As your own (~/.config/containers/systemd/, systemctl --user): add UserNS=keep-id below [Container]\n"
    head += comment(spec.note)
    body = "\n".join(f"[{name}]\n" + "".join(f"{k}={v}\n" for k, v in lines) for name, lines in sections.items())
    return {f"{spec.name}.container": head + body}


def _container(spec: Container) -> list[tuple[str, str]]:
    lines = [
        ("Image", spec.image if "/" in spec.image.partition(":")[0] and "." in spec.image.partition("/")[0] else f"docker.io/{spec.image}"),
        ("ContainerName", spec.name),
        ("User", spec.user.partition(":")[0]),
        ("Group", spec.user.partition(":")[2]),
        ("ReadOnly", "true"),
        ("DropCapability", "all"),
        ("NoNewPrivileges", "true"),
        ("RunInit", "true"),
        ("PublishPort", f"{f'[{spec.bind}]' if ':' in spec.bind else spec.bind}:{spec.port}:{spec.port}"),
        ("Entrypoint", '["/bin/sh","-c"]'),
        ("Exec", _word(spec.script)),
        ("HealthCmd", rest_of_line(spec.health.replace("$", "$$"))),
        ("Notify", "healthy"),  # podman 5: active after the first answer that makes sense; older: after the start
        ("HealthInterval", "60s"),
        ("HealthTimeout", "75s"),
        ("HealthRetries", "3"),
        ("HealthStartPeriod", f"{spec.start_seconds}s"),
        ("PodmanArgs", f"--shm-size={spec.shm_bytes} --tmpfs=/tmp:exec,mode=1777 --ulimit=memlock=-1:-1 --ulimit=nofile=1048576:1048576"),
        ("PodmanArgs", f"--stop-timeout={spec.stop_seconds}"),
    ]
    devices = ["all"] if spec.device_ids is None else spec.device_ids
    lines += [("AddDevice", f"nvidia.com/gpu={d}") for d in devices] if spec.gpus else []
    lines += [("Environment", _word(f"{k}={v}")) for k, v in sorted(spec.environment.items())]
    return lines + [("Volume", _volume(m)) for m in spec.mounts]


def _volume(mount: Mount) -> str:
    """Raises UsageError `not-for-a-unit` for a path with a colon, which parts the fields here."""
    target = mount.target or mount.source
    if ":" in mount.source + target:
        raise UsageError("not-for-a-unit", "podman's Volume= cannot hold a path with a colon", evidence=(mount.source,), hint="rename it")
    return rest_of_line(f"{mount.source}:{target}".replace("$", "$$") + (":ro" if mount.read_only else ""))


def _word(text: str) -> str:
    refuse_unspeakable(text.replace("\n", "").replace("\t", ""), "the value")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("$", "$$")
    return '"' + escaped.replace("%", "%%") + '"'
