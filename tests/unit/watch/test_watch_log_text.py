"""Logs as users keep them: gzip, UTF-16 of Windows shells, marks, cut archives."""

import bz2
import gzip
import lzma
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from firstlight.app.log_text import UNPACK, encoding_of, is_packed, is_stream, log_pieces, packing_of, stream_pieces
from firstlight.core.errors import InputError

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
        bz2.compress(TEXT.encode()),
        lzma.compress(TEXT.encode()),
        lzma.compress(TEXT.encode("utf-16")),
        gzip.compress(TEXT[:60].encode()) + gzip.compress(TEXT[60:].encode()),
        lzma.compress(TEXT[:60].encode()) + lzma.compress(TEXT[60:].encode()),
        bz2.compress(TEXT[:60].encode()) + bz2.compress(TEXT[60:].encode()),
        gzip.compress(TEXT.encode()) + b"\0" * 512,
    ],
)
def test_the_text_is_the_same_however_it_was_kept(tmp_path: Path, data: bytes) -> None:
    assert b"".join(log_pieces(written(tmp_path, data))).decode() == TEXT


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_cut_archive_gives_what_it_holds(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    text = "".join(f"line {i} {hash(str(i))}\n" for i in range(60000)).encode()
    path = written(tmp_path, pack(text)[:-4000])
    assert is_packed(path)
    found = b"".join(log_pieces(path))
    assert 1000 < len(found) < len(text)
    assert text.startswith(found)


@pytest.mark.parametrize("head", [b"", b"abc", b"\0" * 4096, bytes(range(256)) * 2, "ü€漢字".encode() * 50])
def test_what_is_not_utf_16_is_left_alone(head: bytes) -> None:
    assert encoding_of(head) is None


@pytest.mark.parametrize("head", [b"\x28\xb5\x2f\xfd rest of it", b"PK\x03\x04 rest of it", b"\x04\x22\x4d\x18 rest"])
def test_what_python_does_not_unpack_is_told_with_the_tool_that_does(tmp_path: Path, head: bytes) -> None:
    path = written(tmp_path, head)
    assert is_packed(path)
    with pytest.raises(InputError) as caught:
        list(log_pieces(path))
    assert caught.value.code == "log-packed"
    assert UNPACK[str(packing_of(head))] in str(caught.value.hint)


def test_a_bomb_of_zeros_is_read_in_pieces(tmp_path: Path) -> None:
    path = written(tmp_path, lzma.compress(b"\n" * (64 << 20)))
    assert max(len(piece) for piece in log_pieces(path)) <= 1 << 20


def test_a_fifo_is_read_to_its_end_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstlight.app.log_text.SILENT_SECONDS", 0.05)
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    assert is_stream(path)
    said: list[str] = []
    waited = threading.Event()

    def write() -> None:
        waited.wait(30)
        with open(path, "wb") as f:
            f.write(TEXT.encode())

    def say(text: str) -> None:
        said.append(text)
        waited.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert b"".join(stream_pieces(path, say)).decode() == TEXT
    writer.join(30)
    assert len(said) == 1
    assert "nobody writes" in said[0]
