"""The table of verbs: one line each, so that help needs no import of any of them."""

from typing import NamedTuple

OF_RUN = "of-run"
EVERYWHERE = "its answer is the same for every host"
KNOWN_HERE = "what was learned about every host is kept on this machine"
# of a verb's parts, where they differ from it
PARTS = {"engines show": EVERYWHERE, "engines diff": EVERYWHERE, "engines source": "Python files of releases are asked from this machine",
         "get gpus": EVERYWHERE, "service run": "it is the unit's own main process"}  # fmt: skip


class Verb(NamedTuple):
    """module: under firstlight.app.cli, holding a click command named `command`. section: heading in the help.

    host: what `--host` is for a verb without one of its own: OF_RUN narrows which runs it finds; anything else is why there is none.
    """

    module: str
    help: str
    section: str
    host: str | None = None


VERBS: dict[str, Verb] = {
    "up": Verb("up", "take a model to a verified endpoint", "Main"),
    "down": Verb("down", "stop a run and prove that everything is free", "Main", OF_RUN),
    "restart": Verb("restart", "stop a run and start the same plan again", "Main", OF_RUN),
    "inspect": Verb("inspect", "what a checkpoint says about itself", "Stages"),
    "probe": Verb("probe", "what this machine has", "Stages"),
    "ask": Verb("ask", "what the engine itself says about a model", "Stages"),
    "preflight": Verb("preflight", "every problem at once, before anything starts", "Stages"),
    "check": Verb("check", "preflight for your own engine command", "Stages"),
    "plan": Verb("plan", "memory, context and layout, computed", "Stages"),
    "fetch": Verb("fetch", "weights on disk, verified, resumable", "Stages"),
    "rehearse": Verb("rehearse", "the plan on the real GPUs with dummy weights", "Stages"),
    "launch": Verb("launch", "start a plan under a supervisor", "Stages"),
    "watch": Verb("watch", "read an engine's log as an expert does", "Stages", OF_RUN),
    "diagnose": Verb("diagnose", "the first cause of a failed start", "Stages", OF_RUN),
    "verify": Verb("verify", "prove that an endpoint's answers make sense", "Stages", OF_RUN),
    "bench": Verb("bench", "how fast an endpoint is, next to what was promised", "Stages", OF_RUN),
    "deploy": Verb("deploy", "compose, Quadlet and unit files from a plan", "Keep it up", OF_RUN),
    "service": Verb("service", "the endpoint as a systemd service", "Keep it up"),
    "attach": Verb("attach", "follow a run as if it had just been started", "Keep it up", OF_RUN),
    "get": Verb("get", "list runs, their events, GPUs", "Look", OF_RUN),
    "describe": Verb("describe", "everything about one run", "Look", OF_RUN),
    "logs": Verb("logs", "an engine's full log", "Look", OF_RUN),
    "explain": Verb("explain", "what a code means and what cures it", "Look", EVERYWHERE),
    "report": Verb("report", "a folder that a bug report needs, without secrets", "Look", OF_RUN),
    "diff": Verb("diff", "what differs between two runs or plans", "Look", OF_RUN),
    "apply": Verb("apply", "start from a saved plan, refused when the facts changed", "Main"),
    "engines": Verb("engines", "list, install, compare engines", "Things"),
    "models": Verb("models", "what is cached, and who uses it", "Things"),
    "cache": Verb("cache", "compile caches: sizes and pruning", "Things"),
    "knowledge": Verb("knowledge", "what healing has learned about models on this machine", "Things", KNOWN_HERE),
    "rules": Verb("rules", "diagnosis rules: list and test", "Things", EVERYWHERE),
    "schema": Verb("schema", "JSON Schema of a kind", "Things", EVERYWHERE),
    "completion": Verb("completion", "shell completion", "Things", EVERYWHERE),
    "doctor": Verb("doctor", "is this installation in order", "Things"),
}
SECTIONS = ("Main", "Stages", "Keep it up", "Look", "Things")
