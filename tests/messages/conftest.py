"""The cases of tests/checks and the recorded machines of tests/facts are at hand here."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "checks"), str(Path(__file__).parents[1] / "facts")]
