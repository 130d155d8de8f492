"""Documents: every struct that crosses a doorway is also a JSON file with `schema` and `kind`."""

from typing import Any, TypeVar

import msgspec

from firstlight.core.answer import EngineAnswer, RehearsalReport
from firstlight.core.checkpoint import Checkpoint
from firstlight.core.diagnosis import Diagnosis
from firstlight.core.errors import InputError
from firstlight.core.events import Event
from firstlight.core.fetch import Fetched, FetchEstimate, Manifest
from firstlight.core.intent import Intent
from firstlight.core.machine import EngineInstall, Machine
from firstlight.core.plan import PlanSet
from firstlight.core.reference import Reference
from firstlight.core.run import Endpoint, LaunchSpec, Overlay, Run
from firstlight.core.saved import SavedPlan
from firstlight.core.verdict import BenchReport, Verdict

SCHEMA_MAJOR = 1
SCHEMA = f"firstlight/{SCHEMA_MAJOR}"
KINDS: dict[str, type[msgspec.Struct]] = {
    t.__name__: t
    for t in (
        Checkpoint,
        Machine,
        EngineInstall,
        Intent,
        PlanSet,
        SavedPlan,
        EngineAnswer,
        RehearsalReport,
        Overlay,
        LaunchSpec,
        Endpoint,
        Run,
        Event,
        Diagnosis,
        Verdict,
        BenchReport,
        FetchEstimate,
        Fetched,
        Manifest,
        Reference,
    )
}
T = TypeVar("T", bound=msgspec.Struct)


def to_document(value: msgspec.Struct) -> dict[str, Any]:
    """A struct as plain data with `schema` and `kind` in front."""
    return {"schema": SCHEMA, "kind": type(value).__name__, **msgspec.to_builtins(value)}


def encode(value: msgspec.Struct, *, indent: int = 2) -> bytes:
    """A struct as JSON text that ends in a newline (indent 0: one line)."""
    raw = msgspec.json.encode(to_document(value))
    return (msgspec.json.format(raw, indent=indent) if indent else raw) + b"\n"


def decode(data: bytes | str, kind: type[T], *, origin: str = "input") -> T:
    """JSON text back into `kind`. Raises InputError: not-json, schema-newer, schema-missing, wrong-kind, wrong-shape."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as e:
        raise InputError("not-json", f"{origin} is not JSON", evidence=(str(e),)) from None
    return from_document(document, kind, origin=origin)


def from_document(document: Any, kind: type[T], *, origin: str = "input") -> T:
    """Plain data back into `kind`; unknown fields are an error, so that nothing is lost silently."""
    if not isinstance(document, dict):
        raise InputError("wrong-shape", f"{origin} is not a JSON object", evidence=(f"found {type(document).__name__}",))
    fields = dict(document)
    _check_schema(fields.pop("schema", None), origin)
    found = fields.pop("kind", None)
    if found != kind.__name__:
        raise InputError("wrong-kind", f"{origin} is not a {kind.__name__}", evidence=(f"kind: {found!r}",))
    known = {f.encode_name for f in msgspec.structs.fields(kind)}
    if extra := sorted(fields.keys() - known):
        raise InputError(
            "wrong-shape",
            f"{origin} has fields that this version does not know",
            evidence=tuple(extra[:8]),
            hint="use the firstlight version that wrote it, or remove the fields",
        )
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as e:
        raise InputError("wrong-shape", f"{origin} is not a valid {kind.__name__}", evidence=(str(e),)) from None


def _check_schema(schema: Any, origin: str) -> None:
    if not isinstance(schema, str) or not schema.startswith("firstlight/"):
        raise InputError("schema-missing", f"{origin} carries no firstlight schema", evidence=(f"schema: {schema!r}",))
    if schema != SCHEMA:
        raise InputError(
            "schema-newer",
            f"{origin} was written with another schema",
            evidence=(f"schema: {schema}, this version reads {SCHEMA}",),
            hint="upgrade firstlight, or use the version that wrote it",
        )
