"""Structured signals: the plugin's records over a real socket from a real second process, `/metrics` against a prediction."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.watch.records import ENVIRONMENT, PLUGIN_MODULE, Record, RecordSocket, plugin_files, read_record
from firstlight.watch.served import CacheInfo, missed_by, read_cache_info
from firstlight.watch.state import EngineLog

ENGINE = """
import logging, multiprocessing
from importlib.metadata import entry_points
for e in entry_points(group="vllm.general_plugins"): e.load()(); e.load()()
logging.getLogger("vllm.worker").warning("Model loading took %s GiB memory and %.6f seconds", 31.42, 48.5)
logging.getLogger("other").warning("not ours")
logging.getLogger("vllm").error("bad %d %d", 1)
"""


def lay(folder: Path) -> None:
    for name, data in plugin_files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def test_records_of_another_process_arrive_as_data(tmp_path: Path) -> None:
    lay(tmp_path / "plugin")
    source = RecordSocket(str(tmp_path / "log.sock"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "plugin"), ENVIRONMENT: source.path}
    done = subprocess.run([sys.executable, "-c", ENGINE], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    record, second = source.drain()
    assert record.args == [31.42, 48.5]
    assert (record.level, record.process, record.logger) == ("WARNING", "APIServer", "vllm.worker")
    log = EngineLog("vllm")
    figure = next(e for e in log.take(record.as_line(1), record.time) if e.kind == "figure")
    assert figure.data == {"weights_gib": 31.42, "load_seconds": 48.5}
    assert log.phase == "post-load"
    assert second.text == "bad %d %d"
    assert source.drain() == []
    source.close()
    assert not os.path.lexists(source.path)


RECORD = Record(time=1.0, pid=7, process="EngineCore", format="Model loading took %s GiB memory and %.6f seconds", args=[31.42, 48.5])
TEXT = b"(EngineCore pid=7) INFO 10-12 08:00:00 [gpu.py:1] Model loading took 31.42 GiB memory and 48.500000 seconds\n"


@pytest.mark.parametrize("record_first", [True, False])
def test_a_record_and_its_text_are_one_event(*, record_first: bool) -> None:
    log = EngineLog("vllm")
    log.take(Record(time=1.0, pid=7, process="EngineCore", format="x").as_line(1), 1.0)
    ways = [lambda: log.take(RECORD.as_line(1), 1.0), lambda: log.feed(TEXT, 1.0)]
    events = [e for way in (ways if record_first else reversed(ways)) for e in way()]
    assert [e.kind for e in events].count("figure") == 1
    assert len([e for e in log.feed(TEXT, 2.0) if e.kind == "figure"]) == 1  # said again: another event


def test_without_a_socket_the_plugin_changes_nothing(tmp_path: Path) -> None:
    lay(tmp_path)
    code = f"import logging, {PLUGIN_MODULE} as p; before = logging.getLogRecordFactory(); p.register(); assert logging.getLogRecordFactory() is before"  # noqa: E501
    env = {k: v for k, v in os.environ.items() if k != ENVIRONMENT}
    subprocess.run([sys.executable, "-c", code], env={**env, "PYTHONPATH": str(tmp_path)}, check=True, timeout=60)


def test_a_reader_that_is_gone_does_not_disturb_the_engine(tmp_path: Path) -> None:
    lay(tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), ENVIRONMENT: str(tmp_path / "nobody.sock")}
    done = subprocess.run([sys.executable, "-c", ENGINE], env=env, capture_output=True, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize("datagram", [b"", b"{}", b"\xff", b"[1]", b'{"time":"x","format":"y"}'])
def test_strangers_datagrams_are_no_records(datagram: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert read_record(datagram) is None


INFO = 'block_size="128",cache_dtype="auto",{more}num_gpu_blocks="5462"'
SAID = 'kv_cache_max_concurrency="341.33",kv_cache_size_tokens="699040",'


def metrics(more: str) -> str:
    info = INFO.replace("{more}", more)
    return f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{info}}} 1.0\nvllm:num_requests_running 0.0\n"


def test_the_cache_as_the_engine_made_it() -> None:
    found = read_cache_info(metrics(SAID))
    assert found == CacheInfo(num_gpu_blocks=5462, block_size=128, cache_dtype="auto", tokens=699040, concurrency=341.33)
    older = read_cache_info(metrics(""))
    assert older is not None
    assert older.tokens == 5462 * 128
    assert read_cache_info("vllm:num_requests_running 0\n") is None


def test_how_far_a_prediction_was_off() -> None:
    assert missed_by(1000, 1020.0) == pytest.approx(0.02)
    assert missed_by(None, 1.0) is None
    assert missed_by(1000, None) is None


NEWER = """
import logging, os, sys, types
from importlib.metadata import entry_points
for e in entry_points(group="vllm.general_plugins"): e.load()()
sys.modules["vllm.logger"] = types.SimpleNamespace(_vllm_process_info=("EngineCore_DP1", os.getpid()))
ours = logging.getLogRecordFactory()
logging.setLogRecordFactory(lambda *a, **k: ours(*a, **k))
for e in entry_points(group="vllm.general_plugins"): e.load()()
logging.getLogger("vllm").warning("once")
"""


def test_newer_vllm_keeps_the_process_name_and_wraps_the_factory_again(tmp_path: Path) -> None:
    lay(tmp_path / "plugin")
    source = RecordSocket(str(tmp_path / "log.sock"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "plugin"), ENVIRONMENT: source.path}
    subprocess.run([sys.executable, "-c", NEWER], env=env, check=True, timeout=60)
    assert [(r.process, r.text) for r in source.drain()] == [("EngineCore_DP1", "once")]
    source.close()


ODD = """
import logging
from importlib.metadata import entry_points
for e in entry_points(group="vllm.general_plugins"): e.load()()
log = logging.getLogger("vllm")
log.warning("non-default args: %s", {"max_num_seqs": 4})
log.warning("%(a)s of %(b)d", {"a": "x", "b": 3})
log.warning("config: %s", "c" * 9000)
log.warning("too long: %s %s %s %s", *("d" * 19000,) * 4)
log.warning("after")
"""


def test_dicts_and_long_arguments_arrive_whole_and_what_is_too_long_stays_text(tmp_path: Path) -> None:
    lay(tmp_path / "plugin")
    source = RecordSocket(str(tmp_path / "log.sock"))
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "plugin"), ENVIRONMENT: source.path}
    subprocess.run([sys.executable, "-c", ODD], env=env, check=True, timeout=60)
    texts = [record.text for record in source.drain()]
    source.close()
    assert texts == ["non-default args: {'max_num_seqs': 4}", "x of 3", f"config: {'c' * 9000}", "after"]


def heard(*records: Record) -> EngineLog:
    log = EngineLog("vllm")
    for record in records:
        log.take(record.as_line(1), record.time)
    return log


def test_uvicorns_lines_carry_no_process_and_are_known_again() -> None:
    log = heard(Record(time=1.0, pid=7, process="APIServer", format="Started server process [%d]", args=[7]))
    assert log.feed(b"INFO:     Started server process [7]\n", 1.0) == []
    assert [e.kind for e in log.feed(b"INFO:     Started server process [7]\n", 1.0)] == ["figure"]


def test_workers_that_share_a_name_are_named_alike_both_ways() -> None:
    log = heard(Record(time=1.0, pid=7, process="Worker", format="Starting to load model /m..."))
    log.feed(b"(Worker pid=8) INFO 10-12 08:00:00 [a.py:1] Starting to load model /m...\n", 1.0)
    assert set(log.workers) == {"Worker pid=7", "Worker pid=8"}
    assert log.feed(b"(Worker pid=7) INFO 10-12 08:00:00 [a.py:1] Starting to load model /m...\n", 1.0) == []


def test_as_many_twins_as_there_are_ranks_are_met_once_each() -> None:
    log = heard(
        *(Record(time=1.0, pid=pid, process=f"Worker_TP{pid}", format="Loading weights took %.1f seconds", args=[2.5]) for pid in range(64))
    )
    lines = "".join(f"(Worker_TP{pid} pid={pid}) INFO 10-12 08:00:00 [a.py:1] Loading weights took 2.5 seconds\n" for pid in range(65))
    events = log.feed(lines.encode(), 1.0)
    assert [e.worker for e in events if e.kind == "figure"] == ["Worker_TP64"]
