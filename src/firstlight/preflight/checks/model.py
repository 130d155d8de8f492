"""Whether this engine release knows the model: architecture, transformers, tokenizer, remote code, files."""

from collections.abc import Iterator

from firstlight.catalog import vocabulary
from firstlight.core.findings import Finding
from firstlight.preflight.check import Check, blocker, remark, warning
from firstlight.preflight.context import Context
from firstlight.preflight.cuda import numbers

TRANSFORMERS_5_TOKENIZERS = ("TokenizersBackend", "SentencePieceBackend", "MistralCommonBackend")


def architecture(context: Context) -> Iterator[Finding]:
    """The release's own registry; an architecture it lacks may still run through transformers, slower and without every feature."""
    assert context.checkpoint is not None
    wanted = context.checkpoint.architectures
    known = [vocabulary.has("architectures", a, context.version) for a in wanted]
    if not wanted or None in known or any(known):
        return
    first = [s for a in wanted if (s := vocabulary.since("architectures", a))]
    last = [s for a in wanted if (s := vocabulary.until("architectures", a))]
    evidence = [f"config.json: architectures {', '.join(wanted)}", f"not in the model registry of {context.named}"]
    if first and numbers(first[0]) > context.release:
        hint = f"`firstlight engines install vllm@{first[0]}`, the first release in the catalog that has it"
        yield blocker("engine-too-old-for-arch", f"{context.named} is older than this architecture", evidence=evidence, hint=hint)
    elif last:
        hint = f"`firstlight engines install vllm@{last[0]}`, the last release in the catalog that has it"
        yield blocker("engine-too-new-for-arch", f"{context.named} has removed this architecture", evidence=evidence, hint=hint)
    else:
        yield warning(
            "architecture-not-registered",
            f"no vLLM release in the catalog registers {', '.join(wanted)}",
            evidence=evidence,
            note="vLLM may run it through transformers, slower; a plugin or a newer release may register it",
            hint="`firstlight ask MODEL` asks the installed engine itself",
        )


def transformers(context: Context) -> Iterator[Finding]:
    """The installed transformers against what the engine requires and what wrote the checkpoint's tokenizer."""
    assert context.install is not None
    have = context.install.transformers
    needs = vocabulary.requires("transformers", context.version)
    if have and needs and not vocabulary.satisfies(have, needs):
        newer = not _older_only(have, needs)
        yield (warning if newer else blocker)(
            "transformers-too-new" if newer else "transformers-too-old",
            f"transformers {have} is not what {context.named} requires",
            evidence=[f"installed: transformers {have}", f"the release requires: transformers{needs}"],
            hint=f"{context.install.python or 'python'} -m pip install 'transformers{needs}'",
        )
    kind = context.checkpoint.tokenizer.class_ if context.checkpoint and context.checkpoint.tokenizer else None
    if have and kind in TRANSFORMERS_5_TOKENIZERS and numbers(have) < (5,):
        yield blocker(
            "tokenizer-transformers5-checkpoint",
            f"the tokenizer was saved by transformers 5 and transformers {have} cannot load it",
            evidence=[f"tokenizer_config.json: tokenizer_class {kind}", f"installed: transformers {have}"],
            note=f"{context.named} requires transformers{needs}" if needs else None,
            hint="`firstlight engines install vllm@0.24.0` or newer, or the tokenizer files of an earlier revision",
        )


def _older_only(have: str, needs: str) -> bool:
    """Below a lower bound, rather than above an upper one."""
    lower = [part for part in needs.split(",") if part.strip().startswith(">=")]
    return any(not vocabulary.satisfies(have, part) for part in lower)


def written_by_newer_transformers(context: Context) -> Iterator[Finding]:
    """config.json says which transformers wrote it: a model type that came later is unknown to an older one."""
    assert context.checkpoint is not None
    assert context.install is not None
    have, wrote = context.install.transformers, context.checkpoint.config.get("transformers_version")
    if isinstance(wrote, str) and have and numbers(wrote)[:1] > numbers(have)[:1]:
        yield warning(
            "checkpoint-newer-than-transformers",
            f"the checkpoint was written by transformers {wrote}, and {have} is installed",
            evidence=[f"config.json: transformers_version {wrote}", f"installed: transformers {have}"],
            hint="if loading its config or tokenizer fails, use an engine release with that transformers",
        )


def remote_code(context: Context) -> Iterator[Finding]:
    assert context.checkpoint is not None
    remote = context.checkpoint.trust_remote_code
    allowed = (context.intent is not None and context.intent.trust_remote_code) or "--trust-remote-code" in context.own_args
    if not remote.needed or context.engine not in ("vllm", "sglang"):
        return
    files = [f"the checkpoint names its own Python: {name}" for name in remote.files[:8]] or ["config.json: auto_map"]
    if allowed:
        pinned = context.checkpoint.revision or (context.checkpoint.path and "the files in the folder")
        note = f"pinned to {pinned}" if pinned else "no revision is pinned: the code can change under you"
        yield remark("trust-remote-code-used", "Python that comes with the model will run", evidence=files, note=note)
        return
    if _built_in(context, remote.files):
        message = f"the model brings Python of its own, which {context.named} does not need: it knows this architecture"
        yield remark("trust-remote-code-needed", message, evidence=files)
        return
    yield warning(
        "trust-remote-code-needed",
        "the model brings Python of its own, and running it is not allowed",
        evidence=files,
        note="without it the config, tokenizer or processor may not load",
        hint="read the files, then --trust-remote-code",
    )


def _built_in(context: Context, files: list[str]) -> bool:
    """The release registers the architecture, and only its config and model come as code: tokenizers and processors are always run."""
    assert context.checkpoint is not None
    known = [vocabulary.has("architectures", a, context.version) for a in context.checkpoint.architectures]
    plain = [f for f in files if f.startswith(("configuration", "modeling"))]
    return context.engine == "vllm" and bool(files) and plain == files and bool(known) and all(known)


def weights(context: Context) -> Iterator[Finding]:
    """Draft layers that the flags want and the checkpoint does not have."""
    assert context.checkpoint is not None
    wanted = context.option("--speculative-config") or ""
    pins = context.intent.pins.speculative_config if context.intent else None
    method = str((pins or {}).get("method") or "") or next((m for m in ("mtp", "deepseek_mtp") if f'"{m}"' in wanted), "")
    own = not (pins or {}).get("model") and '"model"' not in wanted
    has = any(g.role.startswith(("mtp", "nextn", "draft")) or "mtp" in g.pattern for g in context.checkpoint.tensor_groups)
    declared = context.checkpoint.config.get("num_nextn_predict_layers") or context.checkpoint.config.get("mtp_num_hidden_layers")
    if "mtp" in method and own and not has and context.checkpoint.tensor_groups and not _past_the_stack(context):
        yield blocker(
            "draft-weights-absent",
            "speculative decoding is asked for and the checkpoint has no draft layers",
            evidence=[
                f"speculative config: method {method}",
                f"config.json: draft layers {declared or 0}; no tensor of one is in the files",
            ],
            hint="drop --speculative-config, or name a draft model in it",
        )


def _past_the_stack(context: Context) -> bool:
    """DeepSeek's draft layer is stored as the layer after the last."""
    assert context.checkpoint is not None
    last = context.checkpoint.num_hidden_layers
    return last is not None and any(layer >= last for g in context.checkpoint.tensor_groups for layer in g.layers)


CHECKS = (
    Check("architecture", ("checkpoint",), architecture, engines=("vllm",)),
    Check("transformers", ("install",), transformers, engines=("vllm",)),
    Check("checkpoint-newer-than-transformers", ("checkpoint", "install"), written_by_newer_transformers, engines=("vllm",)),
    Check("remote-code", ("checkpoint",), remote_code),
    Check("draft-weights", ("checkpoint",), weights, engines=("vllm",)),
)
