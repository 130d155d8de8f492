"""Engine adapters come through entry points: ours by the same door as anybody's."""

from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points

from firstlight.core.errors import FirstlightError, UsageError
from firstlight.core.ports import EngineAdapter

GROUP = "firstlight.engines"
_FIELDS = ("name", "title", "accepts", "discovery", "read_install", "overlay", "launch", "command", "install_hint")


def load_adapters(points: Iterable[EntryPoint] | None = None) -> list[EngineAdapter]:
    """Every registered adapter, sorted by name. Raises FirstlightError `adapter-broken`, `adapter-twice`: never skipped silently."""
    found: dict[str, EngineAdapter] = {}
    for point in entry_points(group=GROUP) if points is None else points:
        adapter = _load(point)
        if adapter.name in found:
            raise FirstlightError(
                "adapter-twice",
                f"two installed packages register the engine {adapter.name}",
                evidence=(f"{GROUP}: {point.name} = {point.value}",),
                hint="uninstall one of the packages",
            )
        found[adapter.name] = adapter
    return [found[name] for name in sorted(found)]


def find_adapter(name: str, adapters: Sequence[EngineAdapter] | None = None) -> EngineAdapter:
    """The adapter of `vllm`, `vllm@0.32.0`, … Raises UsageError `engine-unknown`."""
    known = load_adapters() if adapters is None else adapters
    wanted = name.partition("@")[0]
    for adapter in known:
        if adapter.name == wanted:
            return adapter
    raise UsageError(
        "engine-unknown",
        f"{wanted} is not an engine that is known here",
        evidence=tuple(f"{a.name}: {a.title}" for a in known),
        hint=f"name one of these, or install a package that registers `{GROUP}`",
    )


def _load(point: EntryPoint) -> EngineAdapter:
    evidence = f"{GROUP}: {point.name} = {point.value}"
    try:
        adapter: EngineAdapter = point.load()
    except Exception as e:
        raise FirstlightError(
            "adapter-broken",
            f"the adapter of the engine {point.name} cannot be loaded",
            evidence=(evidence, f"{type(e).__name__}: {e}"),
            hint="upgrade or uninstall the package that registers it",
        ) from e
    if missing := [f for f in _FIELDS if not hasattr(adapter, f)]:
        raise FirstlightError(
            "adapter-broken",
            f"the adapter of the engine {point.name} lacks parts of EngineAdapter",
            evidence=(evidence, f"missing: {', '.join(missing)}"),
            hint="upgrade or uninstall the package that registers it",
        )
    return adapter
