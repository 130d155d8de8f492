"""vLLM behind the EngineAdapter port: plan -> argv, environment, overlay. Pure: nothing is read or started here."""

from collections.abc import Sequence

from firstlight.core.checkpoint import Checkpoint
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import Candidate, OverlaySpec
from firstlight.core.run import LaunchSpec
from firstlight.engines.command import has_option, refuse_secrets, shell_command, visible_gpus
from firstlight.engines.vllm.discovery import DISCOVERY, read_install
from firstlight.engines.vllm.overlay import overlay_for

MODULE = "vllm.entrypoints.cli.main"
READY_TIMEOUT_DEFAULT = 600  # vllm/envs.py: VLLM_ENGINE_READY_TIMEOUT_S


class VllmAdapter:
    """vLLM 0.14 and later, CUDA and CPU builds."""

    name = "vllm"
    title = "vLLM"

    def accepts(self, checkpoint: Checkpoint) -> int:
        """A Hugging Face folder is vLLM's own format; a GGUF it takes only for some architectures, and slowly."""
        return {"safetensors": 80, "config-only": 60, "pytorch": 40, "gguf": 5}.get(checkpoint.format, 0)

    def discovery(self, executable: str) -> Sequence[str]:
        return [executable, "-c", DISCOVERY]

    def read_install(self, executable: str, stdout: str) -> EngineInstall | None:
        return read_install(executable, stdout)

    def overlay(self, checkpoint: Checkpoint, candidate: Candidate, machine: Machine, install: EngineInstall | None) -> OverlaySpec | None:
        return overlay_for(checkpoint, candidate, machine, install)

    def launch(
        self,
        *,
        candidate: Candidate,
        checkpoint: Checkpoint,
        intent: Intent,
        install: EngineInstall,
        model_path: str,
        served_name: str,
        port: int,
    ) -> LaunchSpec:
        """The plan's flags first, then the user's own: where both say something, vLLM takes the last."""
        refuse_secrets(intent.extra_args, ("--api-key", "--hf-token"))
        program = [install.python or "python3", "-m", MODULE] if install.python or not install.binary else [install.binary]
        argv = [*program, "serve", model_path, "--served-model-name", served_name, "--host", intent.bind, "--port", str(port)]
        argv += candidate.args
        if intent.trust_remote_code and not has_option([*candidate.args, *intent.extra_args], "--trust-remote-code"):
            argv.append("--trust-remote-code")
        return LaunchSpec(
            engine=self.name,
            argv=[*argv, *intent.extra_args],
            env=_environment(candidate, checkpoint, intent, install, model_path),
            secret_files={"VLLM_API_KEY": intent.api_key_file} if intent.api_key_file else {},
            host=intent.bind,
            port=port,
            health_path="/health",
            served_model_name=served_name,
            stop_signal="SIGTERM",
            stop_grace_seconds=20.0,
            model_path=model_path,
        )

    def command(self, spec: LaunchSpec) -> str:
        return shell_command(spec)

    def install_hint(self, machine: Machine | None) -> str:
        """`--cpu` where the probe looked and found no GPU."""
        cpu = machine is not None and not machine.accelerators
        return f"firstlight engines install vllm{' --cpu' if cpu else ''}"


def _environment(candidate: Candidate, checkpoint: Checkpoint, intent: Intent, install: EngineInstall, model_path: str) -> dict[str, str]:
    """Variables over the inherited ones. The user's own (`intent.env`) win."""
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if install.device == "cpu":
        env["VLLM_TARGET_DEVICE"] = "cpu"
    if model_path.startswith("/"):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if (timeout := ready_timeout(candidate, intent.extra_args)) is not None:
        env["VLLM_ENGINE_READY_TIMEOUT_S"] = str(timeout)
    return env | visible_gpus(intent) | candidate.env | intent.env


def ready_timeout(candidate: Candidate, extra_args: Sequence[str]) -> int | None:
    """Seconds for VLLM_ENGINE_READY_TIMEOUT_S where it bites, else None.

    Several API servers and data parallelism make the API server a client of engines started elsewhere: that client gives up after
    600 s by default, however far the load is. A plain start waits without limit. Three times the plan's own estimate is allowed.
    """
    args = [*candidate.args, *extra_args]
    bites = candidate.data_parallel_size > 1 or has_option(args, "--api-server-count", "-asc", "--data-parallel-size", "-dp")
    if not bites:
        return None
    expected = candidate.predicted.ready_seconds.high if candidate.predicted else None
    return max(READY_TIMEOUT_DEFAULT, round(3 * expected)) if expected is not None else 4 * READY_TIMEOUT_DEFAULT


adapter = VllmAdapter()
