"""What a caller may ask of a fetch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firstlight.core.fetch import FetchProgress
from firstlight.core.findings import Finding
from firstlight.fetch.transfer import Settings

OnProgress = Callable[[FetchProgress], None]
Validate = Callable[[Path], list[Finding]]


@dataclass(frozen=True)
class Options:
    """validate: called with each weight file as it lands; a blocker ends the fetch. verify: hash what is here, repair what is wrong."""

    destination: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    verify: bool = False
    validate: Validate | None = None
    settings: Settings = field(default_factory=Settings)
    cache: str | None = None
