"""Logs as users keep them: gzip, UTF-16 of Windows shells, marks, cut archives."""

import gzip
from pathlib import Path

import pytest

from firstlight.app.log_text import encoding_of, is_packed, log_pieces

TEXT = "(EngineCore pid=1) ERROR 10-12 08:00:00 [core.py:1] ValueError: No available memory for the cache blocks.\n" * 40


def written(folder: Path, data: bytes) -> str:
    path = folder / "engine.log"
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-16-be"),
        gzip.compress(TEXT.encode()),
        gzip.compress(TEXT.encode("utf-16")),
    ],
)
def test_the_text_is_the_same_however_it_was_kept(tmp_path: Path, data: bytes) -> None:
    assert b"".join(log_pieces(written(tmp_path, data))).decode() == TEXT


def test_a_cut_archive_gives_what_it_holds(tmp_path: Path) -> None:
    text = "".join(f"line {i} {hash(str(i))}\n" for i in range(20000)).encode()
    path = written(tmp_path, gzip.compress(text)[:-4000])
    assert is_packed(path)
    found = b"".join(log_pieces(path))
    assert 1000 < len(found) < len(text)
    assert text.startswith(found)


@pytest.mark.parametrize("head", [b"", b"abc", b"\0" * 4096, bytes(range(256)) * 2, "ü€漢字".encode() * 50])
def test_what_is_not_utf_16_is_left_alone(head: bytes) -> None:
    assert encoding_of(head) is None
