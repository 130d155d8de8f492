"""One GGUF, whole or split: its header is all there is to know."""

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.core.checkpoint import ChatTemplate, Checkpoint, TensorGroup, TokenizerSpec
from firstlight.core.errors import InputError
from firstlight.core.findings import Finding, Severity
from firstlight.core.ports import FileInfo, Source
from firstlight.inspect import text
from firstlight.inspect.config import integer, normalise
from firstlight.inspect.fold import Fold
from firstlight.inspect.folder import moe_spec, name_of
from firstlight.inspect.gguf import BY_NAME, GgufHeader, gguf_bytes, padded, read_gguf
from firstlight.inspect.gguf_config import file_type, gguf_config
from firstlight.inspect.kv import attention_kind, kv_bytes_per_token, kv_cache_groups
from firstlight.inspect.quant import gguf_quant
from firstlight.inspect.safetensors import problem
from firstlight.inspect.sources import split_names
from firstlight.inspect.sums import bytes_by_dtype, bytes_by_role, parameters


def inspect_gguf(source: Source, files: Sequence[FileInfo]) -> Checkpoint:
    """Raises InputError with a `gguf-*` code when the (first) file is none."""
    parts = _choose(source, files)
    headers = [read_gguf(lambda o, n, p=f.path: source.read(p, o, n), f.size, f.path) for f in parts]  # type: ignore[misc]
    values: dict[str, Any] = {}
    for header in reversed(headers):
        values |= header.values
    config = normalise(gguf_config(values), parts[0].path)
    findings = [*config.findings, *_extent(parts, headers), *_split(parts, headers), *_companions(values)]
    groups = _groups(parts, headers, integer(config.fields, "num_hidden_layers"))
    return _checkpoint(source, parts, values, config.fields, groups, findings)


def _choose(source: Source, files: Sequence[FileInfo]) -> list[FileInfo]:
    """The parts of one model: the one that `:QUANT` names, or the only one; projectors (mmproj) belong to a model and are none."""
    found = [f for f in files if f.path.endswith(".gguf")] or list(files)
    models = [f for f in found if not posixpath.basename(f.path).startswith("mmproj")] or found
    wanted = getattr(source, "quant", None)
    if wanted:
        models = [f for f in models if wanted.lower() in f.path.lower()]
    chosen = {frozenset(split_names(posixpath.basename(f.path))): posixpath.dirname(f.path) for f in models}
    if not models or len(chosen) > 1:
        shown = ", ".join(f.path for f in (models or found)[:6])
        code, what = ("gguf-ambiguous", "holds more than one model") if models else ("gguf-not-found", f"has no {wanted}")
        hint = "name one of them: org/name:Q4_K_M, or the file"
        raise InputError(code, f"{source.ref} {what}", evidence=(f"found: {shown}",), hint=hint)
    return models


def _checkpoint(
    source: Source,
    parts: Sequence[FileInfo],
    values: Mapping[str, Any],
    fields: dict[str, Any],
    groups: list[TensorGroup],
    findings: list[Finding],
) -> Checkpoint:
    kv = kv_cache_groups(fields)
    sizes = bytes_by_dtype(groups)
    named = file_type(values)
    if named in BY_NAME and sizes and named not in sizes:  # mixes such as Q4_K_M are no type of their own
        message = "the file's own type is that of none of its tensors"
        evidence = f"expected: {named}, found: {', '.join(sizes)}"
        findings.append(problem("quant-config-checkpoint-mismatch", message, evidence, severity=Severity.WARNING))
        named = None
    return Checkpoint(
        ref=source.ref,
        format="gguf",
        path=source.root,
        revision=source.revision,
        name=name_of(source),
        architectures=fields.get("architectures") or [],
        model_type=fields.get("model_type"),
        config=fields,
        num_hidden_layers=integer(fields, "num_hidden_layers"),
        hidden_size=integer(fields, "hidden_size"),
        attention=attention_kind(fields, kv),
        max_position_embeddings=integer(fields, "max_position_embeddings"),
        vocab_size=integer(fields, "vocab_size"),
        moe=moe_spec(fields),
        tensor_count=sum(g.count for g in groups),
        shards=len(parts),
        tensor_bytes=None if any(g.dtype not in BY_NAME for g in groups) else sum(sizes.values()),
        file_bytes=sum(f.size for f in parts),
        parameters=parameters(groups, fields),
        bytes_by_dtype=sizes,
        bytes_by_role=bytes_by_role(groups),
        tensor_groups=groups,
        quantization=gguf_quant(sizes.items(), named),
        kv_cache_groups=kv,
        kv_bytes_per_token=kv_bytes_per_token(kv),
        tokenizer=_tokenizer(values),
        chat_template=_template(values),
        license=values.get("general.license") if isinstance(values.get("general.license"), str) else None,
        files={f.path: f.size for f in parts},
        findings=findings,
    )


def _groups(parts: Sequence[FileInfo], headers: Sequence[GgufHeader], layers: int | None) -> list[TensorGroup]:
    fold = Fold(layers)
    for info, header in zip(parts, headers, strict=True):
        fold.start_shard(info.path)
        by_name = {t.name: t for t in header.tensors}
        for (key, _), names in fold.grouped(by_name, [0] * len(by_name)).items():
            kinds = dict.fromkeys((by_name[n].dtype, by_name[n].shape) for n in names)
            for dtype, shape in kinds:
                fold.add(key, [n for n in names if by_name[n][1:3] == (dtype, shape)], dtype, shape)
    return fold.tensor_groups()


def _extent(parts: Sequence[FileInfo], headers: Sequence[GgufHeader]) -> list[Finding]:
    """Tensors lie one after another, padded, and end where the file ends; each name is there once, in whole blocks."""
    found: list[Finding] = []
    names: Counter[str] = Counter(t.name for h in headers for t in h.tensors)
    if twice := [name for name, n in names.items() if n > 1]:
        message = f"{parts[0].path} names {len(twice):,} tensor(s) twice"
        found.append(problem("tensor-duplicate", message, f"expected: each name once, found: {', '.join(twice[:3])}"))
    for info, header in zip(parts, headers, strict=True):
        found += _places(info, header)
    return found


def _places(info: FileInfo, header: GgufHeader) -> list[Finding]:
    end = 0
    for tensor in sorted(header.tensors, key=lambda t: t.offset):
        size = gguf_bytes(tensor.dtype, tensor.shape)
        if size is None:
            return [problem("dtype-unknown", f"{tensor.name} in {info.path} has {tensor.dtype}", "expected: a type of ggml")]
        block = BY_NAME[tensor.dtype][0]
        if tensor.shape and tensor.shape[-1] % block:
            row = f"expected: rows of whole blocks of {block}, found: rows of {tensor.shape[-1]:,}"
            return [problem("shape-invalid", f"{tensor.name} in {info.path} cannot be {tensor.dtype}", row)]
        begin = padded(end, header.alignment)
        if tensor.offset != begin:
            code, what = ("offsets-overlap", "tensors overlap in") if tensor.offset < end else ("offsets-gap", "tensors do not adjoin in")
            where = f"expected: {tensor.name} at {begin:,}, found: at {tensor.offset:,}"
            return [problem(code, f"{what} {info.path}", where)]
        end = begin + size
    return _length(info, header, end) if header.tensors else []


def _length(info: FileInfo, header: GgufHeader, end: int) -> list[Finding]:
    """end: of the last tensor, from the start of the data; the writer may pad it."""
    missing = header.data_start + end - info.size
    if missing > 0:
        detail = f"expected: {info.size + missing:,} bytes, found: {info.size:,} ({missing:,} missing)"
        return [problem("shard-truncated", f"{info.path} is shorter than its header says", detail, hint="download it again")]
    surplus = info.size - header.data_start - padded(end, header.alignment)
    if surplus > 0:
        detail = f"expected: {info.size - surplus:,} bytes, found: {info.size:,} ({surplus:,} too many)"
        message = f"{info.path} is longer than its header says"
        return [problem("shard-too-long", message, detail, severity=Severity.WARNING, hint="download it again")]
    return []


def _split(parts: Sequence[FileInfo], headers: Sequence[GgufHeader]) -> list[Finding]:
    """A split file says how many parts there are, and how many tensors in all of them."""
    count = next((h.values["split.count"] for h in headers if isinstance(h.values.get("split.count"), int)), None)
    total = next((h.values["split.tensors.count"] for h in headers if isinstance(h.values.get("split.tensors.count"), int)), None)
    found = sum(len(h.tensors) for h in headers)
    if count is not None and count > 1 and count != len(parts):
        folder, name = posixpath.split(parts[0].path)
        missing = sorted(split_names(name) - {posixpath.basename(f.path) for f in parts})
        evidence = (f"expected: {count} parts, found: {len(parts)}", *(posixpath.join(folder, n) for n in missing[:5]))
        return [
            problem("shard-missing", f"{count - len(parts)} part(s) of the split GGUF are missing", *evidence, hint="download it again")
        ]
    if total is not None and total != found:
        return [
            problem("index-shard-mismatch", "the split GGUF does not hold what it says", f"expected: {total:,} tensors, found: {found:,}")
        ]
    return []


def _companions(values: Mapping[str, Any]) -> list[Finding]:
    if values.get("tokenizer.ggml.model") is None:
        return [problem("tokenizer-missing", "there is no tokenizer in the file", severity=Severity.WARNING)]
    if not values.get("tokenizer.chat_template"):
        message = "there is no chat template in the file: chat requests get the engine's own"
        return [problem("chat-template-missing", message, severity=Severity.NOTE)]
    return []


def _tokenizer(values: Mapping[str, Any]) -> TokenizerSpec | None:
    kind = values.get("tokenizer.ggml.model")
    if kind is None:
        return None
    return TokenizerSpec(class_=str(kind), vocab_size=values.get("tokenizer.ggml.tokens#length"), files=[])


def _template(values: Mapping[str, Any]) -> ChatTemplate:
    template = values.get("tokenizer.chat_template")
    return text.template_from(template, "gguf") if isinstance(template, str) and template else ChatTemplate(present=False)
