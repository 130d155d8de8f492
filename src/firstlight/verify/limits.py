"""The contract's options and limits: stop, max_tokens, n, seed, logprobs, unicode, errors, long requests, cancelling."""

import asyncio
import re
import time
from typing import Any

from firstlight.catalog.deviations import known_deviation
from firstlight.verify.answers import Answer, NoAnswer, error_text
from firstlight.verify.session import Outcome, Session
from firstlight.verify.wire import WireAnswer, WireSlot, WireUsage, read

LIST = "Some numbers in order: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"


async def _generate(session: Session, max_tokens: int, **options: Any) -> Answer:
    """A text that goes on for a while: a list of numbers continued, or asked for in a chat."""
    if session.has_completions:
        return await session.go_on(LIST, max_tokens=max_tokens, **options)
    return await session.ask("List the numbers from 1 to 60, separated by commas.", max_tokens=max_tokens, **options)


async def stop_strings(session: Session) -> Outcome:
    """A stop string taken out of the model's own answer ends the same answer before it."""
    whole = await _generate(session, 24)
    if not whole.ok or len(whole.text) < 8:
        return Outcome(passed=None, note=f"too little text to choose a stop string from: {whole.text!r} {whole.error}")
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = await _generate(session, 24, stop=[stop])
    faults = [f"status {cut.status}: {cut.error}"] if not cut.ok else []
    faults += [f"the stop string {stop!r} is in {cut.text!r}"] if stop in cut.text else []
    faults += [f"finish_reason is {cut.finish_reason!r}"] if cut.ok and cut.finish_reason != "stop" else []
    expected = whole.text[: whole.text.index(stop)]
    same = cut.text == expected or whole.text.startswith(cut.text)
    faults += [] if same or faults else [f"{cut.text!r} instead of {expected!r}"]
    return Outcome(passed=not faults, evidence=faults or [f"stop {stop!r}: {cut.text!r}"])


async def max_tokens(session: Session) -> Outcome:
    """No more tokens than asked for, and `length` as the reason."""
    answer = await _generate(session, 5)
    if not answer.ok:
        return Outcome(passed=False, evidence=[f"status {answer.status}: {answer.error}"])
    used = answer.usage.completion_tokens
    if session.thinking:
        return Outcome(passed=None, note="a reasoning model is not cut this short")
    faults = [f"{used} completion_tokens of max_tokens 5"] if used is not None and used > 5 else []
    faults += [f"finish_reason is {answer.finish_reason!r}"] if used == 5 and answer.finish_reason != "length" else []
    return Outcome(passed=not faults, evidence=faults or [f"{used} of 5, {answer.finish_reason}"])


async def several(session: Session) -> Outcome:
    """n = 2 gives two choices; usage counts both."""
    faults, known = await _n_choices(session, 0)
    more, known_more = await _n_choices(session, 0.8)
    return _with_deviations([*faults, *more], [*known, *known_more], "n = 2: two choices, both counted")


async def _n_choices(session: Session, temperature: float) -> tuple[list[str], list[str]]:
    path, body = _short_body(session)
    try:
        status, reply = await session.api.post(
            path, {"model": session.api.model, **body, "max_tokens": 4, "n": 2, "temperature": temperature}
        )
    except NoAnswer as e:
        return await _n_unanswered(session, e, temperature)
    if status != 200:
        code = "n-beyond-slots" if "value <= 1," in error_text(reply) else "n-refused-at-temperature-0" if temperature == 0 else "n-refused"
        known = known_deviation(session.engine, "n", code)
        return ([], [known.what]) if known else ([f"n = 2 at temperature {temperature}: status {status}: {error_text(reply)[:100]}"], [])
    found = read(reply, WireAnswer)
    if isinstance(found, str):
        return [f"n = 2 at temperature {temperature}: {found}"], []
    choices = found.choices or []
    indices = sorted(c.index if c.index is not None else -1 for c in choices)
    if indices != [0, 1]:
        return [f"n = 2 at temperature {temperature}: choices {indices}"], []
    used = (found.usage or WireUsage()).completion_tokens
    if used is not None and used <= 4 and all(c.finish_reason == "length" for c in choices):
        known = known_deviation(session.engine, "n", "usage-counts-one-choice")
        return ([], [known.what]) if known else ([f"{used} completion_tokens for two choices cut at 4"], [])
    return [], []


async def _n_unanswered(session: Session, why: NoAnswer, temperature: float) -> tuple[list[str], list[str]]:
    """No answer but a closed connection: known of an engine whose refusal of n = 2 ends the connection, where it lives on."""
    closed = why.code == "connection" and temperature == 0
    known = known_deviation(session.engine, "n", "n-closes-the-connection") if closed else None
    if known is None or not await session.api.lives():
        raise why
    return [], [known.what]


def _with_deviations(faults: list[str], known: list[str], fine: str) -> Outcome:
    unique = list(dict.fromkeys(known))
    note = f"known deviation: {'; '.join(unique)}" if unique else None
    return Outcome(passed=not faults, evidence=faults or [fine], note=note)


def _short_body(session: Session) -> tuple[str, dict[str, Any]]:
    if session.has_completions:
        return "/completions", {"prompt": LIST, "max_tokens": 4}
    return "/chat/completions", {"messages": [{"role": "user", "content": "Count from 1 to 20."}], "max_tokens": 4}


async def seed(session: Session) -> Outcome:
    """The same seed gives the same text at temperature 1, another seed another one."""
    texts = [await session.story(16, temperature=1.0, seed=s) for s in (11, 11, 12, 13)]
    if failed := next((t for t in texts if not t.ok), None):
        return Outcome(passed=False, evidence=[f"status {failed.status}: {failed.error}"])
    first, again, *others = [t.whole for t in texts]
    if first != again:
        again = (await session.story(16, temperature=1.0, seed=11)).whole
    faults = [] if first == again else [f"seed 11 twice: {first[:60]!r}, {again[:60]!r}"]
    faults += ["three seeds, one text: sampling is off"] if {first} == set(others) else []
    return Outcome(passed=not faults, evidence=faults or [f"seed 11 twice: {first[:40]!r}"])


async def logprobs(session: Session) -> Outcome:
    """One row a token, each chosen token among its row, no probability above 1, and together they spell the text."""
    answer = await _generate(session, 12, **session.logprob_options(5))
    if not answer.ok:
        return Outcome(passed=None, note=f"no logprobs here: {answer.error}")
    if not answer.tokens:
        return Outcome(passed=None, note="logprobs asked for, none given")
    session.has_logprobs = True
    faults = [f for row in answer.tokens for f in _row_faults(row.token, row.logprob, dict(row.top))]
    spelled = "".join(r.token for r in answer.tokens)
    text = answer.text
    if "\ufffd" not in spelled and not spelled.strip().startswith(text.strip()[:40]):
        faults.append(f"the rows spell {spelled[:40]!r}, the text is {text[:40]!r}")
    return Outcome(passed=not faults, evidence=faults[:4] or [f"{len(answer.tokens)} rows, {len(answer.tokens[0].top)} alternatives each"])


def _row_faults(token: str, value: float, top: dict[str, float]) -> list[str]:
    if value != value or value > 1e-3:
        return [f"{token!r} has logprob {value}"]
    best = max(top.values(), default=value)
    return [f"{token!r} at {value:.2f} was chosen over one at {best:.2f}"] if best > value + 0.35 else []


EMOJI = "Weather words: sun ☀️🌞, rain 🌧️☔, snow ❄️⛄, sun ☀️🌞, rain 🌧️☔, snow ❄️⛄, sun ☀️🌞, rain"


async def unicode_borders(session: Session) -> Outcome:
    """Characters of several bytes and tokens come whole, whatever chunk borders they cross."""
    if session.has_completions:
        path, body = "/completions", {"prompt": EMOJI, "max_tokens": 24, "temperature": 0}
    else:
        path, body = "/chat/completions", {"messages": [{"role": "user", "content": f"Repeat exactly: {EMOJI}"}], "max_tokens": 64}
    streamed = await session.api.stream(path, body)
    if not streamed.ok:
        return Outcome(passed=False, evidence=[f"status {streamed.status}: {streamed.error}"])
    text = streamed.whole
    wide = sum(ord(c) > 127 for c in text)
    broken = text.rstrip("\ufffd").count("\ufffd")
    evidence = f"{wide} characters beyond ASCII in {len(streamed.chunks)} chunks, {broken} broken: {text[:40]!r}"
    if not wide:
        return Outcome(passed=None, note=f"the model wrote none: {text[:40]!r}")
    return Outcome(passed=broken == 0, evidence=[evidence])


async def errors(session: Session) -> Outcome:
    """Bad requests are refused with a 4xx and words, and the server lives on."""
    path, good = _short_body(session)
    good = {"model": session.api.model, **good}
    missing = {k: v for k, v in good.items() if k not in ("prompt", "messages")}
    bad: list[tuple[str, Any]] = [
        ("broken-json-accepted", b'{"model": '),
        ("missing-input-accepted", missing),
        ("wrong-type-accepted", {**good, "temperature": "hot"}),
        ("negative-max-tokens-accepted", {**good, "max_tokens": -5}),
        ("negative-temperature-accepted", {**good, "temperature": -1}),
        ("unknown-model-accepted", {**good, "model": "firstlight-no-such-model"}),
    ]
    faults: list[str] = []
    known: list[str] = []
    for code, body in bad:
        status, _ = await session.api.post(path, body)
        if not 400 <= status < 500:
            deviation = known_deviation(session.engine, "errors", code)
            (known if deviation else faults).append(deviation.what if deviation else f"{code}: status {status}")
    status, _ = await session.api.post(path, good)
    faults += [] if status == 200 else [f"after the bad requests a good one gets status {status}"]
    return _with_deviations(faults, known, f"{len(bad) - len(known)} of {len(bad)} bad requests refused")


async def long_request(session: Session) -> Outcome:
    """More than the context holds is refused with a 4xx, and the server lives on."""
    limit = session.max_model_len
    if not limit or limit > 300_000:
        return Outcome(passed=None, note="context length unknown" if not limit else f"{limit} tokens are too many to overflow here")
    path, body = _short_body(session)
    text = "word " * (limit + limit // 4)
    filled = {"prompt": text} if "prompt" in body else {"messages": [{"role": "user", "content": text}]}
    status, _ = await session.api.post(path, {"model": session.api.model, **body, **filled})
    after, _ = await session.api.post(path, {"model": session.api.model, **body})
    faults = [] if 400 <= status < 500 else [f"{limit + limit // 4} words of a context of {limit}: status {status}"]
    faults += [] if after == 200 else [f"afterwards a good request gets status {after}"]
    return Outcome(passed=not faults, evidence=faults or [f"more than {limit} tokens: status {status}, then answers go on"])


async def cancel(session: Session) -> Outcome:
    """A client that goes away frees its place: nothing runs on soon after."""
    before = await _running(session)
    path, body = _short_body(session)
    started = time.monotonic()
    async with session.api.open_stream(path, {**body, "max_tokens": 1024, "temperature": 0, **session.endless()}) as (status, lines):
        if status != 200:
            return Outcome(passed=None, note=f"no stream: status {status}")
        async for line in lines:
            if line.startswith("data:"):
                break
    if before is None:
        return await _cancel_by_time(session, time.monotonic() - started)
    running, seconds = await _settled(session, before)
    freed = running is not None and running <= before
    return Outcome(passed=freed, evidence=[f"{running} running {seconds:.1f} s after the client left, {before} before it came"])


async def _settled(session: Session, before: int, patience: float = 5.0) -> tuple[int | None, float]:
    """The gauge once it is back at `before`, or after `patience` seconds, and how long that took."""
    started = time.monotonic()
    for _ in range(round(patience / 0.1)):
        running = await _running(session)
        if running is None or running <= before:
            break
        await asyncio.sleep(0.1)
    return running, time.monotonic() - started


async def _cancel_by_time(session: Session, first: float) -> Outcome:
    """Without a gauge: after as many cancelled requests as there are places, a short one must not wait for them."""
    started = time.monotonic()
    answer = await _generate(session, 4)
    took = time.monotonic() - started
    evidence = [f"the next answer took {took:.1f} s; no gauge of running requests"]
    return Outcome(passed=answer.ok and took < max(5.0, 10 * first), evidence=evidence)


_GAUGE_NAMES = "vllm:num_requests_running|llamacpp:requests_processing|sglang:num_running_reqs"
_GAUGES = re.compile(rf"^(?:{_GAUGE_NAMES})(?:\{{[^}}\n]*\}})?\s+([0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]{{1,2}})?)\s*$", re.M)


async def _running(session: Session) -> int | None:
    """Requests under way, by the engine's own gauge; None when it shows none."""
    try:
        status, body = await session.api.get("/metrics", root=True)
        if status == 200 and isinstance(body, str) and (found := _GAUGES.findall(body)):
            return round(sum(float(v) for v in found))
        status, body = await session.api.get("/slots", root=True)
    except NoAnswer:
        return None
    slots = read(body, list[WireSlot])
    return sum(s.is_processing for s in slots) if status == 200 and not isinstance(slots, str) else None
