"""What adapters share: a launch as text that can be pasted, and secrets kept out of arguments."""

import shlex
from collections.abc import Mapping, Sequence

from firstlight.core.errors import UsageError
from firstlight.core.intent import Intent
from firstlight.core.run import LaunchSpec


def shell_command(spec: LaunchSpec) -> str:
    """One line for a POSIX shell: unset variables, variables, secrets read from their files, then the program.

    A secret is shown as the command that reads it, so that the line works and tells nothing.
    """
    words = [w for name in spec.unset_env for w in ("-u", name)]
    settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.env.items())]
    secrets = [f'{name}="$(cat {shlex.quote(path)})"' for name, path in sorted(spec.secret_files.items())]
    prefix = ["env", *words, *settings, *secrets] if words or settings or secrets else []
    line = " ".join([*prefix, shlex.join(spec.argv)])
    return f"cd {shlex.quote(spec.cwd)} && {line}" if spec.cwd else line


SECRET_OPTIONS = ("--api-key", "--hf-token", "-hft")
_SHORTEST = len("--api")  # engines take an option's beginning for the option
_SECRET_WORDS = frozenset({"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD"})


def refuse_secret_variables(env: Mapping[str, str]) -> None:
    """`--env` ends in the run's documents and in whatever is rendered from them. Raises UsageError `secret-in-environment`."""
    for name in env:
        if _SECRET_WORDS & set(name.upper().split("_")):
            raise UsageError(
                "secret-in-environment",
                f"{name} looks like a secret, and variables are written into the run's documents",
                evidence=(f"--env {name}=…",),
                hint="--api-key-file FILE for the endpoint's key; HF_TOKEN is read from your own environment",
            )


def refuse_secrets(extra_args: Sequence[str], options: Sequence[str] = SECRET_OPTIONS) -> None:
    """Arguments are visible to every user of the machine. Raises UsageError `secret-in-arguments`."""
    for word in extra_args:
        name = word.partition("=")[0].replace("_", "-")
        if name in options or (len(name) >= _SHORTEST and any(o.startswith(name) for o in options)):
            raise UsageError(
                "secret-in-arguments",
                "a secret stands among the engine's arguments, where every user of the machine can read it",
                evidence=(f"{word.partition('=')[0]} after `--`",),
                hint="put the key into a file that only you can read and name it with --api-key-file",
            )


def visible_gpus(intent: Intent) -> dict[str, str]:
    """`--gpus 0,1` as the variable that every CUDA program respects."""
    return {} if intent.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, intent.gpus))}


def has_option(args: Sequence[str], *names: str) -> bool:
    """Whether one of the options stands in `args`, as `--x v` or `--x=v`; vLLM takes `_` for `-` too."""
    wanted = {n.replace("_", "-") for n in names}
    return any(a.startswith("-") and a.partition("=")[0].replace("_", "-") in wanted for a in args)


def option_value(args: Sequence[str], *names: str) -> str | None:
    """The last value of an option in `args`, as `--x v` or `--x=v`."""
    wanted = {n.replace("_", "-") for n in names}
    found: str | None = None
    for position, word in enumerate(args):
        key, equals, value = word.partition("=")
        if key.startswith("-") and key.replace("_", "-") in wanted:
            found = value if equals else (args[position + 1] if position + 1 < len(args) else None)
    return found
