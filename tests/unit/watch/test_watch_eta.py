"""ETA as an interval: from shards, bytes, history, the catalog; never narrower than what is known."""

from firstlight.core.figures import Rung
from firstlight.watch.eta import Eta, Pace, phase_seconds
from firstlight.watch.state import EngineLog


def feed(log: EngineLog, eta: Eta, text: str, now: float) -> None:
    for event in log.feed(text.encode(), now):
        eta.event(event)


def shards(done: int, total: int) -> str:
    return f"Loading safetensors checkpoint shards:  1% Completed | {done}/{total} [00:01<00:01,  1.05it/s]\n"


def loading() -> EngineLog:
    log = EngineLog("vllm")
    log.feed(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n", 100.0)
    return log


def test_a_steady_shard_rate_gives_a_narrow_interval_around_the_truth() -> None:
    pace = Pace()
    for i in range(11):
        pace.add(100.0 + 9.0 * i, i)
    span = pace.rest(119, 190.0, "shards")
    assert span is not None
    assert span.low < 9.0 * 109 < span.high
    assert abs(span.mid - 981) < 1
    assert span.high - span.low < 0.7 * 981
    assert "10 of 119 shards at 9 s each" in span.because


def test_a_rate_that_slows_down_widens_the_interval() -> None:
    even, slowing = Pace(), Pace()
    for i in range(8):
        even.add(10.0 * i, i)
        slowing.add(10.0 * i * (1 + 0.2 * i), i)
    a, b = even.rest(40, 70.0, "shards"), slowing.rest(40, 168.0, "shards")
    assert a is not None
    assert b is not None
    assert (b.high - b.low) / b.mid > (a.high - a.low) / a.mid


def test_shards_beat_the_catalog_and_say_so() -> None:
    log, eta = loading(), Eta("vllm")
    before = eta.remaining(log, 100.0)
    for i in range(1, 6):
        feed(log, eta, shards(i, 46), 100.0 + 20.0 * i)
    after = eta.remaining(log, 200.0)
    assert (before.rung, after.rung) == (Rung.COMPUTED, Rung.MEASURED)
    assert after.mid is not None
    assert after.mid > 41 * 20
    assert after.because is not None
    assert "5 of 46 shards" in after.because


def test_bytes_over_a_measured_rate_when_the_log_is_silent() -> None:
    log, eta = loading(), Eta("vllm", checkpoint_bytes=100_000_000_000, read_bytes_per_second=2e9)
    start = eta.remaining(log, 100.0)
    assert start.because == "100.0 GB at 2.00 GB/s"
    for i in range(6):
        eta.bytes_read(100.0 + i, int(i * 1e9))
    live = eta.remaining(log, 105.0)
    assert live.rung is Rung.MEASURED
    assert live.low is not None
    assert live.high is not None
    assert live.low < 95 + 60 < live.high


def test_history_of_this_machine_replaces_the_catalog() -> None:
    log = loading()
    eta = Eta("vllm", history=[{"loading": 50.0, "warming": 2.0}, {"loading": 60.0, "warming": 3.0}])
    found = eta.remaining(log, 110.0)
    assert found.because == "2 earlier starts on this machine"
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 43 <= 53 <= found.high


def test_an_eager_start_neither_compiles_nor_captures() -> None:
    lazy, eager = loading(), loading()
    eager.fields["args"] = "{'enforce_eager': True}"
    a, b = Eta("vllm").remaining(lazy, 100.0), Eta("vllm").remaining(eager, 100.0)
    assert a.mid is not None
    assert b.mid is not None
    assert a.mid > b.mid


def test_nothing_is_promised_once_it_is_over() -> None:
    log = EngineLog("vllm")
    log.feed(b"INFO:     Application startup complete.\n", 1.0)
    assert not Eta("vllm").remaining(log, 2.0).known


def test_phase_seconds_are_the_history_of_the_next_start() -> None:
    log = EngineLog("vllm")
    log.feed(b"INFO 10-12 08:00:05 [a.py:1] Starting to load model /m...\n", 10.0)
    log.feed(b"INFO 10-12 08:00:05 [a.py:1] Model loading took 3.0 GiB memory and 4.0 seconds\n", 25.0)
    log.feed(b"INFO:     Application startup complete.\n", 30.0)
    assert phase_seconds(log) == {"loading": 15.0, "post-load": 5.0}


def test_a_small_model_on_a_fast_machine_is_inside_the_interval_from_the_start() -> None:
    """What is merely usual is wide below: every phase of such a start is short."""
    log = EngineLog("vllm")
    log.feed(b"(APIServer pid=9) INFO 10-12 08:00:00 [a.py:1] vLLM API server version 0.32.0\n", 100.0)
    found = Eta("vllm").remaining(log, 100.0)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 20 < 300 < found.high


def test_the_size_that_the_engine_prints_counts_where_nobody_told_one() -> None:
    log = loading()
    log.feed(
        b"INFO 10-12 08:00:05 [a.py:1] Filesystem type for checkpoints: EXT4. Checkpoint size: 93.13 GiB. Available RAM: 200.00 GiB.\n",
        101.0,
    )
    found = Eta("vllm").remaining(log, 101.0)
    assert found.because == "100.0 GB at what disks usually give"
    assert found.mid is not None
    assert found.mid > 90


def test_a_start_on_a_processor_captures_nothing() -> None:
    gpu, cpu = loading(), loading()
    cpu.fields["config"] = "model='/m', device_config=cpu, enforce_eager=False"
    a, b = Eta("vllm").remaining(gpu, 100.0), Eta("vllm").remaining(cpu, 100.0)
    assert a.mid is not None
    assert b.mid is not None
    assert a.mid - b.mid == 10


def test_a_cache_that_filled_since_the_earlier_start_is_inside() -> None:
    eta = Eta("vllm", history=[{"loading": 120.0, "compiling": 60.0, "warming": 5.0}])
    found = eta.remaining(loading(), 100.0)
    assert found.low is not None
    assert found.low < 60


def test_all_bytes_read_says_nothing_more_of_the_pace() -> None:
    log, eta = loading(), Eta("vllm", checkpoint_bytes=10_000_000_000)
    for i in range(11):
        eta.bytes_read(100.0 + i, i * 1_000_000_000)
    assert "GB at what disks" in (eta.remaining(log, 111.0).because or "")


def test_the_longest_earlier_phase() -> None:
    eta = Eta("vllm", history=[{"loading": 50.0}, {"loading": 70.0}])
    assert (eta.longest("loading"), eta.longest("warming")) == (70.0, 0.0)
