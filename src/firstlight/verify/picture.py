"""A PNG made from nothing: digits in white on one colour, so that no test picture needs to be shipped or fetched."""

import base64
import struct
import zlib
from typing import NamedTuple

SCALE, MARGIN = 24, 48
FONT = {
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
}


class Colour(NamedTuple):
    """rgb, and the words that name it (a regular expression)."""

    rgb: tuple[int, int, int]
    words: str


COLOURS = {
    "red": Colour((200, 20, 20), r"\bred\b|crimson"),
    "blue": Colour((20, 40, 200), r"\bblue\b|navy"),
    "green": Colour((10, 130, 40), r"\bgreen\b"),
}


def digits_on(number: str, colour: str) -> bytes:
    """The digits of `number`, 120 x 168 pixels each, white on the named colour, as PNG bytes."""
    back, ink = bytes(COLOURS[colour].rgb), b"\xff\xff\xff"
    rows = [_row(number, y, back, ink) for y in range(7)]
    width = len(rows[0]) // 3
    empty = back * width
    lines = [empty] * MARGIN + [row for row in rows for _ in range(SCALE)] + [empty] * MARGIN
    return png(width, lines)


def _row(number: str, y: int, back: bytes, ink: bytes) -> bytes:
    bits = "0".join(FONT[d].split()[y] for d in number)
    return back * MARGIN + b"".join((ink if bit == "1" else back) * SCALE for bit in bits) + back * MARGIN


def png(width: int, lines: list[bytes]) -> bytes:
    """8-bit RGB lines as a PNG file."""
    header = struct.pack(">IIBBBBB", width, len(lines), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line for line in lines))
    parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts)


def data_url(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()
