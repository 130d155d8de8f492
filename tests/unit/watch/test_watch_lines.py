"""Prefixes of transports and processes, peeled from real shapes of lines."""

import msgspec
import pytest

from firstlight.engines.lines import Line, parse
from firstlight.engines.splitting import Splitter
from firstlight.engines.stamps import seconds_of

TEXT = "Model loading took 1.5 GiB"


@pytest.mark.parametrize(
    ("raw", "worker", "level"),
    [
        (f"(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"(Worker_PP2_TP1_EP1 pid=3) ERROR 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_PP2_TP1_EP1", "ERROR"),
        (f"(Worker_TP0_DCP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0_DCP0", "INFO"),
        (f"(EngineCore_DP0 pid=3) WARNING 10-12 08:00:05 [a.py:1] {TEXT}", "EngineCore_DP0", "WARNING"),
        (f"(VllmWorker rank=6 pid=3) ERROR 10-12 08:00:05 [a.py:1] {TEXT}", "VllmWorker rank=6", "ERROR"),
        (f"(VllmWorkerProcess pid=3) INFO 10-12 08:00:05 model_runner.py:1028] {TEXT}", "VllmWorkerProcess pid=3", "INFO"),
        (f"(RayWorkerWrapper pid=3, ip=10.0.0.7) ERROR 10-12 08:00:05 worker_base.py:1] {TEXT}", "RayWorkerWrapper pid=3", "ERROR"),
        (f"(MapWorker(MapBatches(Stage)) pid=4) (EngineCore_DP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "EngineCore_DP0", "INFO"),
        (f"vllm-1  | (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"[pod/v-0/vllm] (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"2026-10-12T08:00:05.123Z stderr F (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"Oct 12 08:00:05 gpu7 vllm[99]: (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"2026-10-12T08:00:05+0000 gpu7 python[99]: (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (
            f"2026-10-12 08:00:05,123 DEBG 'vllm' stdout output: (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}",
            "Worker_TP0",
            "INFO",
        ),
        (f"[2026-10-12 08:00:05] [/bin/sh]: (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"\x1b[1;36m(Worker_TP0 pid=3)\x1b[0;0m INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"    (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"[1,0]<stderr>:(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"3: (Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}", "Worker_TP0", "INFO"),
        (f"INFO 10-12 08:00:05 model_runner.py:1028] {TEXT}", None, "INFO"),
        (f"INFO 10-12 08:00:05 [model_runner.py:1028] {TEXT}", None, "INFO"),
        (f"ERROR [multiproc_executor.py:870] {TEXT}", None, "ERROR"),
        (f"INFO:     {TEXT}", None, "INFO"),
        (f"2026-10-12 08:00:05,123\tWARNING worker.py:2074 -- {TEXT}", None, "WARNING"),
        (f"[2026-10-12 08:00:05 TP3] {TEXT}", "TP3", None),
        (f"[2026-10-12 08:00:05 DP1 TP0 EP0] {TEXT}", "DP1_TP0_EP0", None),
        (f"0.00.174.294 E cmn  {TEXT}", None, "ERROR"),
        (f"[rank3]: {TEXT}", "rank3", None),
        (f"[rank3]:[W1012 08:00:05.250924908 socket.cpp:207] [c10d] {TEXT}", "rank3", "WARNING"),
        (f"[E1012 08:00:05.25 ProcessGroupNCCL.cpp:632] {TEXT}", None, "ERROR"),
        (f'{{"log":"(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}\\n","stream":"stderr"}}', "Worker_TP0", "INFO"),
        (
            f'{{"message":"{TEXT}","levelname":"ERROR","process":3,"vllm_process_name":"EngineCore_DP0","filename":"a.py","lineno":1}}',
            "EngineCore_DP0",
            "ERROR",
        ),
        (f"(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT} [repeated 7x across cluster]", "Worker_TP0", "INFO"),
        (TEXT, None, None),
    ],
)
def test_prefixes(raw: str, worker: str | None, level: str | None) -> None:
    (line,) = parse(1, raw)
    assert (line.text, line.worker, line.level) == (TEXT, worker, level)


TRANSPORTS = [
    "2026-10-12 08:00:05,123 DEBG 'vllm:vllm_00' stderr output: ",
    "[pod/v-0/vllm] 2026-10-12T08:00:05.123456789Z ",
    "vllm-1  | 2026-10-12T08:00:05.123456789Z ",
    "\x1b[36mvllm-1  | \x1b[0m",
    "stack_vllm.1.abcd1234@node7    | ",
    "0|vllm     | ",
    "1791792005.123456 gpu7 vllm[99]: ",
    "Mon 2026-10-12 08:00:05 UTC gpu7 vllm[99]: ",
    "Mon 2026-10-12 08:00:05.123456 CEST gpu7 vllm.service[99]: ",
    "2026-10-12T08:00:05.123456+0000 gpu7 vllm[99]: ",
    "[ 1234.567890] gpu7 vllm[99]: ",
    "Oct 12 08:00:05 ",
    "2026-10-12_08:00:05.12345 ",
    "@400000006523a1b52c3d4e5f ",
    "(raylet, ip=10.0.0.1) ",
    "[2026-10-12T08:00:05Z] ",
    "[08:00:05] ",
    "08:00:05.123 ",
]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_transports_before_lines_with_and_without_a_process(transport: str) -> None:
    for prefix, worker in (("(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] ", "Worker_TP0"), ("INFO:     ", None)):
        (line,) = parse(1, f"{transport}{prefix}{TEXT}")
        assert (line.text, line.worker, line.level) == (TEXT, worker, "INFO")


@pytest.mark.parametrize("entry", [f'"INFO:     {TEXT}"', str(list(f"\x1b[1;36mINFO:\x1b[0m     {TEXT}".encode()))])
def test_journald_as_json(entry: str) -> None:
    (line,) = parse(1, f'{{"_PID":"99","PRIORITY":"6","MESSAGE":{entry}}}')
    assert (line.text, line.level) == (TEXT, "INFO")


def test_two_lines_without_a_line_end_between_them() -> None:
    raw = f"(Worker_TP0 pid=3) INFO 10-12 08:00:05 [a.py:1] {TEXT}(Worker_TP1 pid=4) ERROR 10-12 08:00:05 [b.py:2] KeyError: 'x'"
    found = [(line.worker, line.text) for line in parse(4, raw)]
    assert found == [("Worker_TP0", TEXT), ("Worker_TP1", "KeyError: 'x'")]


def test_an_error_behind_a_progress_bar_is_a_line_of_its_own() -> None:
    raw = "Capturing CUDA graphs (decode, FULL):  88%|####  | 45/51 [00:04<00:00,  9.30it/s]CUDA error: device kernel image is invalid"
    assert parse(1, raw)[1].text == "CUDA error: device kernel image is invalid"


def test_lines_are_numbered_by_newline_and_not_by_carriage_return() -> None:
    splitter = Splitter()
    assert splitter.feed(b"a\rb\r\nc\n\nd") == [(1, "a"), (1, "b"), (2, "c")]
    assert splitter.close() == [(4, "d")]


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [("10-12 08:00:05", 971337605.0), ("2026-10-12 08:00:05,500", 1791792005.5), ("0.01.174.294", 1.174294), ("soon", None)],
)
def test_stamps(stamp: str, seconds: float | None) -> None:
    found = seconds_of(stamp)
    assert found == seconds or (found is not None and seconds is not None and abs(found - seconds) < 1e-6)


def test_a_line_is_immutable() -> None:
    assert Line(1, "x") == Line(1, "x")


def test_a_json_record_with_its_traceback_is_as_many_lines() -> None:
    """What vLLM's JSON formatter prints for `logger.exception`, wrapped once more by a container runtime or not."""
    record = (
        '{"asctime":"2026-10-12 08:00:05,123","levelname":"ERROR","name":"vllm.v1.engine.core","processName":"MainProcess","process":3,'
        '"message":"EngineCore failed to start.\\nsecond",'
        '"exc_info":"Traceback (most recent call last):\\n  File \\"a.py\\", line 1, in f\\nValueError: x"}'
    )
    lines = parse(7, record)
    assert [line.text for line in lines] == [
        "EngineCore failed to start.",
        "second",
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "ValueError: x",
    ]
    assert {(line.number, line.worker, line.pid, line.level, line.source) for line in lines} == {(7, "APIServer", 3, "ERROR", "core.py:0")}
    assert lines[0].stamp == "2026-10-12 08:00:05,123"
    assert parse(7, msgspec.json.encode({"log": record + "\n", "stream": "stderr"}).decode()) == lines


@pytest.mark.parametrize("raw", ['{"a": 1}', "{mode: 3", '{"message": 5}', "[1]", '{"log": null}', "{" * 5000])
def test_other_json_is_plain_text(raw: str) -> None:
    (line,) = parse(1, raw)
    assert line.text == raw


@pytest.mark.parametrize("carried", ["vllm-1  | ", "Oct 12 08:00:05 gpu7 vllm[99]: ", "2026-10-12T08:00:05.123456789Z stderr F "])
def test_a_json_line_behind_a_transport_is_unwrapped(carried: str) -> None:
    record = '{"levelname": "ERROR", "name": "vllm.v1.core", "vllm_process_name": "EngineCore", "process": 9, "message": "kestrel fell"}'
    (line,) = parse(3, carried + record)
    assert (line.number, line.worker, line.level, line.text) == (3, "EngineCore", "ERROR", "kestrel fell")
