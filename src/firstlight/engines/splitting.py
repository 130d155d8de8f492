"""A log's bytes as numbered pieces: lines, and the bars that are drawn over each other in one. Pure."""

import re

LINE_LIMIT = 65536
REDRAWN = 4  # bars of one line with the same percentage
FOLDED = 300  # characters that a line has at least into which a traceback was folded
_BAR_ENDS = ("it/s]", "s/it]")
_TRACEBACK = "Traceback (most recent call last)"
_RUN_ON = re.compile(r'\s*File "[^"]+", line \d+, in [\w.<>]+ [^\s#\[(]')  # a frame and its code in one line
_PROCESS = re.compile(r" (?=\([A-Za-z]\w* pid=\d+\))")
_TURNS = re.compile(  # where a traceback's lines ended: before a frame, behind its function, before what was raised or a link
    r" +(?=File \"[^\"]+\", line \d+)|(?<=, in )(?P<function>[\w.<>]+) +(?=\S)"
    r"| +(?=(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |$))| +(?=(?:The above exception was|During handling of) )"
    r"|(?<=\(most recent call last\):) +"
)


class Splitter:
    """Bytes in any chunks -> the same numbered pieces. A line over LINE_LIMIT bytes keeps its beginning; memory is constant.

    block: the bytes behind the pieces that were given last, for a look ahead over all of them.
    """

    def __init__(self) -> None:
        self.block = b""
        self._tail = b""
        self._number = 1
        self._dropping = False
        self._bars = _Bars()

    def feed(self, chunk: bytes) -> list[tuple[int, str]]:
        """Complete pieces (ended by newline or carriage return) with their line numbers; empty ones are left out."""
        if self._dropping:
            chunk = self._skip_rest(chunk)
        data = self._tail + chunk if self._tail else chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._keep(data[cut:])
        self.block = _shortened(data[:cut])
        return self._pieces(self.block) if cut else []

    def close(self) -> list[tuple[int, str]]:
        """What is left without a line end."""
        rest, self._tail = self._tail, b""
        self.block = rest
        return [*(self._pieces(rest) if rest else []), *self._bars.flush()]

    def _skip_rest(self, chunk: bytes) -> bytes:
        ends = [i for i in (chunk.find(b"\n"), chunk.find(b"\r")) if i >= 0]
        if not ends:
            return b""
        self._dropping = False
        return chunk[min(ends) :]

    def _keep(self, rest: bytes) -> None:
        if len(rest) > LINE_LIMIT:
            rest = rest[:LINE_LIMIT]
            self._dropping = True
        self._tail = rest

    def _pieces(self, block: bytes) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        number = self._number
        lines = block.decode("utf-8", "replace").split("\n")
        for line in lines:
            if "\r" in line:
                for piece in line.split("\r"):
                    if piece:
                        found += self._bars.take(number, piece)
            elif 'File "' in line and ((len(line) > FOLDED and _TRACEBACK in line) or _RUN_ON.match(line)):
                for piece in unfolded(line):
                    found += self._bars.take(number, piece)
            elif line:
                found += self._bars.take(number, line)
            number += 1
        self._number += len(lines) - 1
        return found


def unfolded(line: str) -> list[str]:
    """A traceback that was folded into one line (an issue's text, a log field without its newlines) in its lines; others as they are.

    Where each line had its process's name, it still stands in front of each.
    """
    frames = line.count('File "')
    if frames < 2 and not _RUN_ON.match(line):
        return [line]
    named = _PROCESS.split(line)
    if len(named) > frames:
        return named
    text = _TURNS.sub(lambda m: f"{m['function']}\n    " if m["function"] else "\n", line)
    return [f"  {piece}" if piece.startswith("File ") else piece for piece in text.split("\n")]


class _Bars:
    """Progress bars are drawn again and again in one line: of those with the same percentage the first few are given, and the last."""

    def __init__(self) -> None:
        self._drawn: tuple[int, str] | None = None
        self._times = 0
        self._held: tuple[int, str] | None = None

    def take(self, number: int, piece: str) -> list[tuple[int, str]]:
        """The pieces that are to be read now, in their order."""
        if not piece.endswith(_BAR_ENDS):
            found = [*self.flush(), (number, piece)] if self._drawn else [(number, piece)]
            self._drawn = None
            return found
        drawn = (number, piece.partition("%")[0])
        if drawn != self._drawn:
            found = [*self.flush(), (number, piece)]
            self._drawn, self._times = drawn, 1
            return found
        self._times += 1
        if self._times <= REDRAWN:
            return [(number, piece)]
        self._held = (number, piece)
        return []

    def flush(self) -> list[tuple[int, str]]:
        held, self._held = self._held, None
        return [held] if held else []


def _shortened(block: bytes) -> bytes:
    """The block with every overlong line cut to LINE_LIMIT bytes."""
    if len(block) <= LINE_LIMIT:
        return block
    lines = block.replace(b"\r", b"\r\x00").split(b"\n") if b"\r" in block else block.split(b"\n")
    if b"\r" not in block:
        return block if max(map(len, lines)) <= LINE_LIMIT else b"\n".join(line[:LINE_LIMIT] for line in lines)
    return b"\n".join(b"\r".join(p[:LINE_LIMIT] for p in line.split(b"\r")) for line in block.split(b"\n"))
