"""What a run is called: a name that files, units and URLs can bear, and a word where it is not the one that was asked for."""

from firstlight.app.output import say
from firstlight.core.ids import slug


def run_name(wanted: str | None, otherwise: str) -> str:
    """wanted: what the user said; otherwise: what the run is called when they said nothing."""
    name = slug(wanted or otherwise)
    if wanted and name != wanted:
        say(f"the run is called {name}: a name has small letters, digits, dots and dashes, at most 100 (asked for: {wanted!r})")
    return name
