"""Flags that the model itself needs in vLLM's server: remote code, tool-call and reasoning parsers."""

from firstlight.catalog.serving import parsers_for
from firstlight.plan.situation import Situation


def serving_flags(s: Situation) -> list[str]:
    """Left out where the user gave the same flag after `--`, or said no to remote code."""
    given = {a.partition("=")[0] for a in s.wish.extra_args}
    flags: list[str] = []
    wanted = s.wish.trust_remote_code
    if (wanted or (wanted is None and s.checkpoint.trust_remote_code.needed)) and "--trust-remote-code" not in given:
        flags.append("--trust-remote-code")
    parsers = parsers_for(s.checkpoint, s.terms.version)
    if parsers is None:
        return flags
    if parsers.tool_call_parser and "--tool-call-parser" not in given:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", parsers.tool_call_parser]
    if parsers.reasoning_parser and "--reasoning-parser" not in given:
        flags += ["--reasoning-parser", parsers.reasoning_parser]
    return flags
