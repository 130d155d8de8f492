"""The supervisor as one file: its package packed into a zip that any Python 3.9 runs."""

import io
import zipfile
from importlib.resources import files

_ROOT = "import sys\nfrom firstlight.launch.supervisor.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"


def supervisor_archive() -> bytes:
    """The same bytes for the same sources."""
    package = files("firstlight.launch.supervisor")
    members = {"__main__.py": _ROOT, "firstlight/__init__.py": "", "firstlight/launch/__init__.py": ""}
    for item in package.iterdir():
        if item.name.endswith(".py"):
            members[f"firstlight/launch/supervisor/{item.name}"] = item.read_text(encoding="utf-8")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0)), members[name])
    return buffer.getvalue()
