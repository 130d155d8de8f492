"""Only a wheel's Python files are read, in few ranges; without ranges pip fetches it whole."""

import http.server
import itertools
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.ask.wheels import engine_source, merged, read_contents
from firstlight.core.errors import FirstlightError
from firstlight.probe.local import LocalHost

HOST = LocalHost()


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Two Python files with 3 MB of compiled code between them."""
    (tmp_path / "fake/wheel").mkdir(parents=True, exist_ok=True)
    path = tmp_path / "fake/wheel/vllm-0.16.0-cp38-abi3-manylinux_2_31_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("vllm/__init__.py", "one = 1\n")
        z.writestr(zipfile.ZipInfo("vllm/_C.abi3.so"), bytes(range(256)) * 12000)
        z.writestr("vllm/deep/two.py", "two = 2\n" * 1000)
        z.writestr("vllm-0.16.0.dist-info/METADATA", "Name: vllm\n")
    return path


class Server(http.server.ThreadingHTTPServer):
    data: bytes
    ranges: list[tuple[int, int]]
    answers_ranges = True


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not match or not self.server.answers_ranges:
            self.send_response(200)
            self.end_headers()
            return
        start, end = int(match[1]), int(match[2])
        self.server.ranges.append((start, end))
        body = self.server.data[start : end + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(self.server.data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(wheel: Path) -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Handler)
    found.data, found.ranges = wheel.read_bytes(), []
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def unpacked(fake_python: Any, cache: Path, url: str) -> Path:
    fake_python.report("vllm==0.16.0", "0.16.0", url=url, requires=["torch==2.9.1", "numpy"])
    return Path(engine_source(HOST, fake_python.path, "vllm==0.16.0", str(cache)))


def test_python_files_come_in_ranges_and_compiled_ones_stay_away(fake_python: Any, server: Server, tmp_path: Path) -> None:
    folder = unpacked(fake_python, tmp_path / "cache", f"http://127.0.0.1:{server.server_port}/w.whl")
    assert (folder / "vllm/__init__.py").read_text() == "one = 1\n"
    assert (folder / "vllm/deep/two.py").read_text().startswith("two = 2")
    assert not (folder / "vllm/_C.abi3.so").exists()
    contents = read_contents(str(folder))
    assert contents.extensions == ["vllm/_C.abi3.so"]
    assert contents.requires == ["torch==2.9.1", "numpy"]
    assert sum(end - start + 1 for start, end in server.ranges) < len(server.data) / 3
    assert len(server.ranges) <= 4


def test_what_was_fetched_once_needs_no_network_again(fake_python: Any, server: Server, tmp_path: Path) -> None:
    folder = unpacked(fake_python, tmp_path / "cache", f"http://127.0.0.1:{server.server_port}/w.whl")
    asked, ranges = len(fake_python.diary), len(server.ranges)
    assert engine_source(HOST, fake_python.path, "vllm==0.16.0", str(tmp_path / "cache")) == str(folder)
    assert (len(fake_python.diary), len(server.ranges)) == (asked, ranges)


def test_a_server_without_ranges_leaves_it_to_pip(fake_python: Any, server: Server, tmp_path: Path) -> None:
    server.answers_ranges = False
    folder = unpacked(fake_python, tmp_path / "cache", f"http://127.0.0.1:{server.server_port}/w.whl")
    assert any("download --quiet --no-deps" in line for line in fake_python.diary)
    assert (folder / "vllm/__init__.py").exists()


def test_a_local_wheel_is_read_where_it_lies(fake_python: Any, wheel: Path, tmp_path: Path) -> None:
    folder = unpacked(fake_python, tmp_path / "cache", wheel.as_uri())
    assert (folder / "vllm/deep/two.py").exists()


def test_an_interrupted_unpacking_leaves_nothing_that_looks_whole(
    fake_python: Any, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: zipfile.ZipFile, *args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "extractall", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpacked(fake_python, tmp_path / "cache", wheel.as_uri())
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("keep", [0, 1, 100, 3000, -1, -22, -30])
def test_a_cut_wheel_is_a_message_and_leaves_nothing(fake_python: Any, wheel: Path, tmp_path: Path, keep: int) -> None:
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(FirstlightError) as error:
        unpacked(fake_python, tmp_path / "cache", wheel.as_uri())
    assert error.value.code == "wheel-not-read"
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("name", ["a page.html", "not there", "a folder", "no metadata"])
def test_what_is_no_wheel_is_a_message(fake_python: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a folder":
        path.mkdir()
    elif name == "no metadata":
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("vllm/__init__.py", "")
    elif name == "a page.html":
        path.write_text("<html>404</html>" * 1000)
    with pytest.raises(FirstlightError) as error:
        unpacked(fake_python, tmp_path / "cache", path.as_uri())
    assert error.value.code == "wheel-not-read"


def test_a_server_that_breaks_off_is_a_message(fake_python: Any, server: Server, tmp_path: Path) -> None:
    whole, server.data = len(server.data), server.data[:-700_000] + b"x" * 700_000
    assert len(server.data) == whole
    with pytest.raises(FirstlightError) as error:
        unpacked(fake_python, tmp_path / "cache", f"http://127.0.0.1:{server.server_port}/w.whl")
    assert error.value.code == "wheel-not-read"


def test_a_report_of_pip_that_is_none_is_a_message(fake_python: Any, tmp_path: Path) -> None:
    for text in ("", "[]", '{"install": 3}', '{"install": [{}]}', "WARNING: old pip"):
        (fake_python.folder / "reports/vllm==0.16.0.json").write_text(text)
        with pytest.raises(FirstlightError) as error:
            engine_source(HOST, fake_python.path, "vllm==0.16.0", str(tmp_path / "cache"))
        assert error.value.code == "release-not-found"


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(1, 10**5)), max_size=30))
def test_merged_ranges_are_ordered_apart_and_cover_everything(pairs: list[tuple[int, int]]) -> None:
    ranges = [(start, start + length) for start, length in pairs]
    found = merged(ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
    assert all(any(start <= r[0] and r[1] <= end for start, end in found) for r in ranges)
