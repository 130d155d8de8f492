"""A Python that is none: answers `-m venv`, `-m pip` and `-c` as the real one does, in milliseconds, and keeps a diary."""

import json
from pathlib import Path

import pytest

SCRIPT = r"""#!/bin/sh
here=FOLDER
echo "$*" >> "$here/diary"
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" "$3/lib"; : > "$3/pyvenv.cfg"; cp "$0" "$3/bin/python"; exit 0;;
  "-m pip") shift 2;;
  *) [ "$1" = -c ] && { dirname "$(dirname "$0")" | sed 's|$|/lib|'; exit 0; };;
esac
case "$*" in
  *--dry-run*) for a in "$@"; do f="$here/reports/$a.json"; [ -e "$f" ] && { cat "$f"; exit 0; }; done
    echo "ERROR: No matching distribution found for it" >&2; exit 1;;
  *download*) for a in "$@"; do case "$last" in --dest) cp "$here"/wheel/*.whl "$a/";; esac; last=$a; done; exit 0;;
  *"list --format json"*) echo '[{"name": "torch", "version": "2.13.0+cpu"}, {"name": "transformers", "version": "5.19.0"}]'; exit 0;;
esac
[ -e "$here/fail" ] && grep -q -f "$here/fail" <<EOT && { echo "ERROR: no space left on device" >&2; exit 1; }
$*
EOT
exit 0
"""


class FakePython:
    """`path` runs it; `diary` is what it was asked; `fail` makes commands that match a text fail; `report` is an index's answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, str(folder / "python")
        (folder / "reports").mkdir()
        Path(self.path).write_text(SCRIPT.replace("FOLDER", str(folder)))
        Path(self.path).chmod(0o755)

    @property
    def diary(self) -> list[str]:
        file = self.folder / "diary"
        return file.read_text().splitlines() if file.exists() else []

    def fail(self, text: str | None) -> None:
        (self.folder / "fail").unlink(missing_ok=True)
        if text:
            (self.folder / "fail").write_text(text + "\n")

    def report(
        self, requirement: str, version: str, url: str = "", requires: list[str] | None = None, more: list[dict] | None = None
    ) -> None:
        name = requirement.split("==")[0]
        first = {"metadata": {"name": name, "version": version, "requires_dist": requires or []}, "download_info": {"url": url}}
        (self.folder / "reports" / f"{requirement}.json").write_text(json.dumps({"install": [first, *(more or [])]}))


@pytest.fixture
def fake_python(tmp_path: Path) -> FakePython:
    folder = tmp_path / "fake"
    folder.mkdir()
    return FakePython(folder)
