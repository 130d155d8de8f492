"""The picture of a terminal in the README: what a real command left on the screen, as SVG.

    python tools/terminal_picture.py --columns 100 --to docs/demo.svg -- firstlight up demo

runs the command in a tmux terminal of its own, waits until it is over, and draws the screen as it is (`tmux capture-pane -e -p`) with rich.
Nothing is edited. A run with exit code other than 0, or a screen that shows a path of this machine, makes no picture.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROWS = 60
# rich's frame without the fonts that it would fetch from a third party's host: a picture in a README contacts nobody.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
THEME = TerminalTheme(
    (17, 20, 24),
    (216, 222, 233),
    [(46, 52, 64), (229, 105, 117), (136, 192, 122), (235, 203, 139), (129, 161, 225), (190, 142, 200), (110, 190, 208), (216, 222, 233)],
    [(96, 106, 122), (240, 130, 140), (160, 215, 145), (245, 220, 160), (150, 180, 245), (205, 165, 215), (140, 210, 225), (245, 248, 252)],
)


def screen_of(command: list[str], columns: int, limit_seconds: float) -> str:
    """The finished screen with its colours. Raises SystemExit where the command fails or does not end."""
    with tempfile.TemporaryDirectory() as folder:
        status, socket = Path(folder) / "status", Path(folder) / "tmux"
        tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        shown = shlex.join(command)
        script = f"printf '$ %s\\n' {shlex.quote(shown)}; {shown}; echo $? > {status}; exec sleep {limit_seconds:.0f}"
        size = ["-x", str(columns), "-y", str(ROWS)]
        environment = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "FIRSTLIGHT_ASCII", "TMUX")}
        subprocess.run([*tmux, "new-session", "-d", *size, f"sh -c {shlex.quote(script)}"], check=True, env=environment)
        try:
            code = _wait(status, limit_seconds)
            screen = subprocess.run([*tmux, "capture-pane", "-e", "-p"], check=True, capture_output=True, text=True).stdout
        finally:
            subprocess.run([*tmux, "kill-server"], check=False)
    if code != "0":
        raise SystemExit(f"no picture: the command ended with {code or 'nothing'}\n{screen}")
    return screen.rstrip("\n")


def _wait(status: Path, limit_seconds: float) -> str:
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        if status.exists() and (code := status.read_text().strip()):
            return code
        time.sleep(0.1)
    return ""


def draw(screen: str, columns: int, title: str) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor", legacy_windows=False)
        for line in screen.split("\n"):
            console.print(Text.from_ansi(line), no_wrap=True, overflow="crop", crop=True, highlight=False)
        return console.export_svg(title=title, theme=THEME, unique_id="terminal", code_format=FORMAT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    screen = screen_of(given.command, given.columns, given.limit)
    for place in {str(Path.home()), os.getcwd()}:
        if len(place) > 1 and place in screen:
            raise SystemExit(f"no picture: the screen shows {place}")
    given.to.write_text(draw(screen, given.columns, shlex.join(given.command)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
