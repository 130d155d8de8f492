"""Tokenizer, chat template, generation defaults, remote code, license: what the small files beside the weights say."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.core.checkpoint import ChatTemplate, RemoteCode, TokenizerSpec

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "tiktoken.model", "tekken.json", "vocab.txt",
)  # fmt: skip
_ENOUGH = frozenset(("tokenizer.json", "tokenizer.model", "tiktoken.model", "tekken.json", "vocab.txt", "vocab.json"))
_TOOLS = re.compile(r"\btools\b|\bbuiltin_tools\b|available_tools")
_REASONING = re.compile(r"<think>|</think>|reasoning_content|enable_thinking|reasoning_effort|\bthinking\b|<\|channel\|>|◁think▷")
_LICENSE = re.compile(rb"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)
_LICENSE_NAME = re.compile(rb"^license_name:\s*[\"']?([\w.+-]+)", re.MULTILINE)


def tokenizer_spec(names: Sequence[str], config: Mapping[str, Any] | None, vocab_size: int | None) -> TokenizerSpec | None:
    """None when no tokenizer file is there."""
    files = [n for n in names if n in TOKENIZER_FILES or n.endswith(".tiktoken")]
    if not files:
        return None
    kind = config.get("tokenizer_class") if config else None
    return TokenizerSpec(class_=kind if isinstance(kind, str) else None, vocab_size=vocab_size, files=files)


def has_tokenizer(names: Sequence[str]) -> bool:
    return any(n in _ENOUGH or n.endswith(".tiktoken") for n in names)


def chat_template(files: Mapping[str, bytes], config: Mapping[str, Any] | None) -> ChatTemplate:
    """files: the template files that are there. The file wins over the key in tokenizer_config.json, as transformers has it."""
    import json

    if "chat_template.jinja" in files:
        return template_from(files["chat_template.jinja"].decode("utf-8", "replace"), "chat_template.jinja")
    if "chat_template.json" in files:
        try:
            value = json.loads(files["chat_template.json"]).get("chat_template")
        except (ValueError, AttributeError, RecursionError):
            value = None
        if isinstance(value, str):
            return template_from(value, "chat_template.json")
    value = config.get("chat_template") if config else None
    if isinstance(value, list):  # several named ones
        value = next((t.get("template") for t in value if isinstance(t, dict) and t.get("name") == "default"), None)
    return template_from(value, "tokenizer_config.json") if isinstance(value, str) and value else ChatTemplate(present=False)


def template_from(text: str, source: str) -> ChatTemplate:
    return ChatTemplate(present=True, source=source, tools=bool(_TOOLS.search(text)), reasoning=bool(_REASONING.search(text)))


def remote_code(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any] | None, names: Sequence[str]) -> RemoteCode:
    """Files that `auto_map` names, in config.json or the tokenizer's. needed: whether any is named at all."""
    files: set[str] = set()
    for table in (config, config.get("text_config") or {}, tokenizer_config or {}):
        mapping = table.get("auto_map") if isinstance(table, dict) else None
        for value in mapping.values() if isinstance(mapping, dict) else ():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and "." in one and "--" not in one:
                    files.add(one.partition(".")[0] + ".py")
    return RemoteCode(needed=bool(files), files=sorted(files))


def license_of(readme: bytes | None) -> str | None:
    """The license in the model card's front matter."""
    if readme is None or not readme.startswith(b"---"):
        return None
    front = readme[: readme.find(b"\n---", 3)]
    found = _LICENSE.search(front)
    if found and found[1] == b"other":
        found = _LICENSE_NAME.search(front) or found
    return found[1].decode("ascii", "replace") if found else None


def modalities(config: Mapping[str, Any]) -> list[str]:
    """text, and what the config has an encoder for."""
    found = ["text"]
    if any(isinstance(config.get(k), dict) and config[k] for k in ("vision_config", "vision_tower_config", "visual", "vit_config")):
        found.append("image")
        if any(k in config for k in ("video_token_id", "video_token_index", "video_placeholder", "use_unified_vision_chunk")):
            found.append("video")
    if any(isinstance(config.get(k), dict) and config[k] for k in ("audio_config", "audio_encoder_config", "speech_config")):
        found.append("audio")
    return found
