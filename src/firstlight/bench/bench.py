"""The bench: a short closed-loop sweep over concurrency, with the client's own cost beside it."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from firstlight.bench.client import Record, Target, User
from firstlight.bench.figures import Slo, e2el, percentile, point, tpot
from firstlight.bench.metrics import Sampler
from firstlight.bench.workload import Profile, Prompts, input_tokens, levels, profile_named
from firstlight.core.errors import Exit, FirstlightError
from firstlight.core.figures import Figure, Rung
from firstlight.core.plan import Candidate
from firstlight.core.run import Endpoint
from firstlight.core.verdict import BenchPoint, BenchReport, Promise, Verdict

OnPoint = Callable[[BenchPoint], None]
REQUEST_SECONDS = 600.0
FORMS = (("/chat/completions", True), ("/completions", True), ("/chat/completions", False), ("/completions", False))


async def run_bench(
    endpoint: Endpoint,
    *,
    profile: str = "quick",
    concurrency: int | None = None,
    candidate: Candidate | None = None,
    verdict: Verdict | None = None,
    force: bool = False,
    api_key: str | None = None,
    on_point: OnPoint | None = None,
    slo: Slo | None = None,
) -> BenchReport:
    """Measures the endpoint. Raises FirstlightError: `not-coherent`, `not-verified` (unless `force`), `bench-no-answer`."""
    refuse_incoherent(verdict, force)
    chosen = profile_named(profile)
    started = time.perf_counter()
    sweep = _Sweep(endpoint, chosen, api_key or _key_of(endpoint), slo)
    await sweep.warm_up()
    points: list[BenchPoint] = []
    for level in levels(concurrency or chosen.concurrency):
        if points and time.perf_counter() - started >= chosen.budget_seconds:
            break
        points.append(await sweep.level(level))
        if on_point:
            on_point(points[-1])
        if points[-1].failed == points[-1].requests:
            break  # more users would not get what fewer did not
    return BenchReport(
        endpoint=endpoint.base_url,
        model=endpoint.model,
        tool="builtin",
        profile=profile,
        points=points,
        promises=promises(points, candidate),
        client_cost=sweep.cost(),
        forced=force and not _coherent(verdict),
        verdict_passed=verdict.passed if verdict else None,
        headline=headline(sweep.single),
        seconds=time.perf_counter() - started,
    )


def _coherent(verdict: Verdict | None) -> bool:
    judged = [c for c in verdict.checks if not c.skipped and (c.group == "coherence" or c.name == "models")] if verdict else []
    return any(c.group == "coherence" for c in judged) and all(c.passed or c.accepted for c in judged)


def refuse_incoherent(verdict: Verdict | None, force: bool) -> None:
    """Speed of an endpoint whose answers make no sense is no figure."""
    if force or _coherent(verdict):
        return
    hint = "`firstlight verify` first, or --force, which marks the report"
    if verdict is None:
        raise FirstlightError("not-verified", "the endpoint has not been verified", hint=hint, exit_code=Exit.VERIFICATION_FAILED)
    failed = tuple(f"{c.name}: {'; '.join(c.evidence[:2])}" for c in verdict.checks if not (c.passed or c.skipped or c.accepted))
    message = "the endpoint's answers did not pass"
    raise FirstlightError("not-coherent", message, evidence=failed, hint=hint, exit_code=Exit.VERIFICATION_FAILED)


def _key_of(endpoint: Endpoint) -> str | None:
    return Path(endpoint.api_key_file).read_text().strip() if endpoint.api_key_file else None


class _Sweep:
    """One sweep's state: where to send, how, and what the client itself has cost."""

    def __init__(self, endpoint: Endpoint, profile: Profile, api_key: str | None, slo: Slo | None) -> None:
        self._target = Target.of(endpoint.base_url, api_key)
        self._profile, self._slo = profile, slo
        self._endpoint = endpoint
        self._path, self._ignore_eos = FORMS[0]
        self._cpu = self._wall = self._gauging = 0.0
        self._chunks = 0
        self.single: list[Record] = []

    def _prompts(self, seed: int) -> Prompts:
        return Prompts(
            self._profile,
            self._endpoint.model,
            chat=self._path.startswith("/chat"),
            input_tokens=input_tokens(self._profile, self._endpoint),
            seed=seed,
            ignore_eos=self._ignore_eos,
        )

    async def warm_up(self) -> None:
        """One request that is not counted; finds out whether this is a chat endpoint, and whether it knows `ignore_eos`."""
        user, record = User(self._target), None
        for self._path, self._ignore_eos in FORMS:
            record = await self._send(user, self._prompts(0))
            if not (record.error and record.error.startswith("status 4")):
                break
        user.close()
        if record is None or record.error or not record.times:
            evidence = record.error if record and record.error else "no chunk with text"
            raise FirstlightError("bench-no-answer", "the endpoint gave no stream", evidence=(evidence,))

    async def _send(self, user: User, prompts: Prompts) -> Record:
        return await user.send(self._path, prompts.body(), seconds=REQUEST_SECONDS, tokens=self._profile.output_tokens)

    async def level(self, concurrency: int) -> BenchPoint:
        """Closed loop: `concurrency` users, each sends its next request when the last one ended, until the time is over."""
        prompts = self._prompts(concurrency)
        cpu, wall = time.process_time(), time.perf_counter()
        deadline = wall + self._profile.seconds
        users = [User(self._target) for _ in range(concurrency)]
        async with Sampler(self._target) as gauges:
            done = await asyncio.gather(*(self._user(u, prompts, deadline) for u in users))
        self._cpu += time.process_time() - cpu
        self._wall += time.perf_counter() - wall
        self._gauging += gauges.read_seconds
        records = [r for rs in done for r in rs]
        self._chunks += sum(len(r.times) for r in records)
        if concurrency == 1:
            self.single = records
        return point(records, concurrency, slo=self._slo, preemptions=gauges.preemptions, kv=gauges.kv)

    async def _user(self, user: User, prompts: Prompts, deadline: float) -> list[Record]:
        records: list[Record] = []
        while not records or time.perf_counter() < deadline:
            records.append(await self._send(user, prompts))
            if records[-1].error:
                await asyncio.sleep(0.05)
        user.close()
        return records

    def cost(self) -> dict[str, float]:
        """The client's own processor time: as a share of one core, and per chunk in microseconds. metrics_share: of the time, in which the
        server was writing its gauges for us.
        """
        chunks = max(1, self._chunks)
        return {
            "core_share": round(self._cpu / self._wall, 4) if self._wall else 0.0,
            "microseconds_per_chunk": round(self._cpu / chunks * 1e6, 1),
            "chunks": self._chunks,
            "metrics_share": round(self._gauging / self._wall, 4) if self._wall else 0.0,
        }


def headline(single: list[Record]) -> str | None:
    """The first user's line, from the median request of the single stream."""
    done = sorted((r for r in single if r.error is None and tpot(r)), key=e2el)
    if not done:
        return None
    middle = done[len(done) // 2]
    rate = percentile([v for r in done if (v := tpot(r))], 0.5)
    assert rate is not None
    return f"{middle.output_tokens or len(middle.times)} tokens in {e2el(middle):.1f} s, {1 / rate:.0f} tok/s single stream"


def promises(points: list[BenchPoint], candidate: Candidate | None) -> list[Promise]:
    """What the plan said next to what came."""
    single = next((p for p in points if p.concurrency == 1), None)
    if candidate is None or candidate.predicted is None or single is None or single.tokens_per_second_per_user is None:
        return []
    promised = candidate.predicted.decode_tokens_per_second_upper_bound
    measured = single.tokens_per_second_per_user
    because = f"{measured / promised.mid:.0%} of the roofline" if promised.mid else None
    return [
        Promise(
            name="decode_tokens_per_second",
            unit="tok/s",
            promised=promised,
            measured=Figure.exact(measured, Rung.MEASURED, "single stream, median"),
            because=because,
        )
    ]
