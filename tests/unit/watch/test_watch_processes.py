"""Phases of many processes: the slowest of a kind, what one rank says for all, and names beyond what an engine has."""

from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.catalog.milestones import PHASES, RANK
from firstlight.engines.splitting import REDRAWN, Splitter
from firstlight.watch.processes import PROCESSES_KEPT, Processes, is_worker, replica_of
from firstlight.watch.state import EngineLog

NAMES = ["Worker_DP0_TP0", "Worker_DP0_TP1", "Worker_DP1_TP0", "Worker_DP1_TP1", "EngineCore_DP0", "EngineCore_DP1", "APIServer", ""]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(PHASES[:11]), st.booleans())))
def test_the_counts_say_what_a_walk_over_all_would_say(steps: list[tuple[str, str, bool]]) -> None:
    processes = Processes()
    for name, phase, for_all in steps:
        processes.put(name, phase)
        if for_all:
            processes.lift(phase, name)
            twins = [n for n in processes.phases if is_worker(n) and replica_of(n) == replica_of(name)]
            assert all(RANK[processes.phases[n]] >= RANK[phase] for n in twins if is_worker(name))
        workers = [RANK[p] for n, p in processes.phases.items() if is_worker(n)]
        cores = [RANK[p] for n, p in processes.phases.items() if n.startswith("EngineCore")]
        others = [RANK[p] for n, p in processes.phases.items() if not is_worker(n) and not n.startswith("EngineCore")]
        assert RANK[processes.reached()] == max(min(workers, default=0), min(cores, default=0), *others, 0)


def test_more_names_than_an_engine_has_are_not_kept() -> None:
    processes = Processes()
    assert all(processes.put(f"Worker_TP{i}", "loading") for i in range(PROCESSES_KEPT))
    assert not processes.put("Worker_TP99999", "loading")
    assert processes.put("Worker_TP0", "profiling")
    assert len(processes.phases) == PROCESSES_KEPT
    assert processes.reached() == "loading"


def bars(count: int) -> bytes:
    bar = "Loading safetensors checkpoint shards:  {0}% Completed | {1}/{2} [00:10<01:00,  1.20it/s]"
    return "\r".join(bar.format(i * 100 // count, i, count) for i in range(count + 1)).encode()


def test_of_bars_that_are_drawn_again_the_first_few_of_a_percentage_and_the_last_are_read() -> None:
    log = EngineLog("vllm")
    events = [e for e in log.feed(bars(20_000) + b"\n", 0.0) if e.kind == "progress"]
    assert (log.done, log.total) == (20_000, 20_000)
    assert len(events) <= 101 * (REDRAWN + 1) + 1
    assert [e.data["done"] for e in events] == sorted(e.data["done"] for e in events)


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 900), st.binary(max_size=4))
def test_what_is_left_of_bars_does_not_depend_on_how_the_bytes_came(size: int, behind: bytes) -> None:
    block = bars(700) + b"\nERROR kestrel fell\r\n" + behind.replace(b"\xff", b"")
    whole, cut = Splitter(), Splitter()
    expected = [*whole.feed(block), *whole.close()]
    assert [p for at in range(0, len(block), size) for p in cut.feed(block[at : at + size])] + cut.close() == expected
