"""Chat template, and the parsers that this family's tool calls and reasoning need."""

from collections.abc import Iterator

from firstlight.catalog import vocabulary
from firstlight.catalog.parsers import family_of
from firstlight.core.findings import Finding
from firstlight.engines.command import has_option
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context


def chat_template(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    template = context.checkpoint.chat_template
    if context.checkpoint.tokenizer is None or template is None or template.present or has_option(context.args, "--chat-template"):
        return
    mistral = has_option(context.args, "--tokenizer-mode")
    if not mistral:
        yield warning(
            "chat-template-missing",
            "the checkpoint has no chat template: chat completions will be refused, completions work",
            evidence=["looked in: chat_template.jinja, chat_template.json, tokenizer_config.json"],
            hint="-- --chat-template FILE.jinja, or use /v1/completions",
        )


def parsers(context: Context) -> Iterator[Finding]:
    """Proposes the family's parsers where the template speaks of tools or reasoning and no flag names one."""
    checkpoint = context.checkpoint
    assert checkpoint is not None
    family = family_of(checkpoint.model_type, checkpoint.architectures, checkpoint.name or checkpoint.ref)
    template = checkpoint.chat_template
    if family is None or template is None or not template.present:
        return
    tool, reasoning = _first(context, "tool_parsers", family.tool), _first(context, "reasoning_parsers", family.reasoning)
    if tool and template.tools and not has_option(context.args, "--tool-call-parser"):
        yield remark(
            "tool-parser-available",
            f"tool calls of this family come back as plain text without a parser; {context.named} has one",
            evidence=[f"family {family.id}: tool parser {tool}"],
            hint=f"-- --enable-auto-tool-choice --tool-call-parser {tool}",
        )
    if reasoning and template.reasoning and not has_option(context.args, "--reasoning-parser"):
        yield remark(
            "reasoning-parser-available",
            f"reasoning stays inside the answer without a parser; {context.named} has one",
            evidence=[f"family {family.id}: reasoning parser {reasoning}"],
            hint=f"-- --reasoning-parser {reasoning}",
        )


def _first(context: Context, part: str, names: list[str]) -> str | None:
    return next((n for n in names if vocabulary.has(part, n, context.version)), None)


def named_parsers(context: Context) -> Iterator[Finding]:
    """A parser on the command line that the release does not have."""
    for option, part in (("--tool-call-parser", "tool_parsers"), ("--reasoning-parser", "reasoning_parsers")):
        name = context.option(option)
        if name is None or vocabulary.has(part, name, context.version) is not False or has_option(context.args, "--tool-parser-plugin"):
            continue
        first = vocabulary.since(part, name)
        known = vocabulary.names(part, context.version or "")
        yield blocker(
            "parser-unknown",
            f"{context.named} has no parser called {name}",
            evidence=[f"{option} {name}", f"it has {len(known)}, the nearest: {', '.join(_nearest(name, known))}"],
            hint=f"`firstlight engines install vllm@{first}`"
            if first and first not in (context.version,)
            else f"{option} {_nearest(name, known)[0]}",
        )


def _nearest(name: str, known: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, known, n=4, cutoff=0.4) or known[:4] or ["NAME"]


def auto_tool_choice(context: Context) -> Iterator[Finding]:
    if has_option(context.args, "--tool-call-parser") and not has_option(context.args, "--enable-auto-tool-choice"):
        yield warning(
            "tool-choice-not-enabled",
            "a tool parser is named and automatic tool choice is off: requests with tools are refused",
            evidence=[f"--tool-call-parser {context.option('--tool-call-parser')}"],
            hint="-- --enable-auto-tool-choice",
        )


CHECKS = (
    Check("chat-template", ("checkpoint",), chat_template, engines=("vllm", "sglang")),
    Check("parsers-proposed", ("checkpoint", "version"), parsers, engines=("vllm",)),
    Check("parsers-named", ("args",), named_parsers, engines=("vllm",)),
    Check("auto-tool-choice", ("args",), auto_tool_choice, engines=("vllm",)),
)
