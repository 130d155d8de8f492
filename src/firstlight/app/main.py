"""The entry point: lazy commands, one place where errors become messages and exit codes."""

import sys


def main() -> None:
    if sys.argv[1:] in (["--version"], ["-V"]):
        from firstlight import __version__

        print(f"firstlight {__version__}")
        return
    try:
        from firstlight.app.group import run
        from firstlight.app.terminal import prepare_streams

        prepare_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are loaded; later ones `run` tells in words
        code = 130
    sys.exit(code)
