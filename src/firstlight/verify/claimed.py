"""What a model and its flags claim, read from the checkpoint and the engine's arguments."""

from collections.abc import Sequence

from firstlight.core.checkpoint import Checkpoint
from firstlight.verify.session import Claims


def claims_for(checkpoint: Checkpoint | None, args: Sequence[str]) -> Claims:
    """Claims of a run: a parser flag claims tools or reasoning, an image modality vision, a missing chat template a base model.

    llama.cpp parses tool calls and reasoning without a parser's name: `--reasoning-format` claims reasoning, a template with tools tools.
    """
    tool_parser, reasoning_parser = _value(args, "--tool-call-parser"), _value(args, "--reasoning-parser")
    return Claims(
        kind=_kind(checkpoint, args),
        tools=tool_parser is not None or "--enable-auto-tool-choice" in args,
        tool_parser=tool_parser,
        template_tools=checkpoint is not None and checkpoint.chat_template is not None and bool(checkpoint.chat_template.tools),
        reasoning=reasoning_parser is not None or _value(args, "--reasoning-format") in ("auto", "deepseek", "deepseek-legacy"),
        reasoning_parser=reasoning_parser,
        vision=_sees(checkpoint, args),
    )


def _value(args: Sequence[str], flag: str) -> str | None:
    """The value of `--flag value` or `--flag=value`."""
    for here, after in zip(args, [*args[1:], ""], strict=False):
        if here == flag:
            return after or None
        if here.startswith(f"{flag}="):
            return here.partition("=")[2]
    return None


def _kind(checkpoint: Checkpoint | None, args: Sequence[str]) -> str | None:
    if _value(args, "--runner") == "pooling" or "--embeddings" in args or "--embedding" in args:
        return "reward" if _value(args, "--convert") in ("reward", "classify") else "embedding"
    template = checkpoint.chat_template if checkpoint else None
    no_template = template is not None and not template.present
    given = _value(args, "--chat-template") or _value(args, "--chat-template-file")
    return "base" if no_template and not given else None


def _sees(checkpoint: Checkpoint | None, args: Sequence[str]) -> bool:
    return checkpoint is not None and "image" in checkpoint.modalities and "--language-model-only" not in args
