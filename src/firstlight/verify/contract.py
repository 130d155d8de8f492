"""The contract: what the API itself promises, whatever the model says."""

from typing import Any

from firstlight.verify.answers import Answer, TokenRow, error_text
from firstlight.verify.session import SHORT, Outcome, Session
from firstlight.verify.wire import WireMeta, WireModel, WireModels, read

QUESTION = [{"role": "user", "content": "Name the capital of France."}]
TIE = 0.35


async def models(session: Session) -> Outcome:
    """GET /models lists the model asked for."""
    status, body = await session.api.get("/models")
    if status != 200:
        return Outcome(passed=False, evidence=[f"GET /models: status {status}: {error_text(body)[:120]}"])
    listed = read(body, WireModels)
    if isinstance(listed, str):
        return Outcome(passed=False, evidence=[f"GET /models: {listed}: {error_text(body)[:80]}"])
    _learn(session, listed.data)
    names = list(dict.fromkeys(n for row in listed.data for n in (row.id, *(row.aliases or [])) if n))
    return Outcome(passed=session.api.model in names, evidence=[f"{len(listed.data)} listed: {', '.join(names[:4])}"])


def _learn(session: Session, rows: list[WireModel]) -> None:
    """Engine and context length, where the list tells them."""
    own = next((r for r in rows if r.id == session.api.model), rows[0] if rows else WireModel())
    session.engine = session.engine or own.owned_by
    session.max_model_len = session.max_model_len or own.max_model_len or (own.meta or WireMeta()).n_ctx


async def chat(session: Session) -> Outcome:
    """A chat turn is answered with text and a reason to stop. Asked as a stream, where silence shows soonest."""
    answer = await session.api.stream("/chat/completions", {"messages": QUESTION, "max_tokens": SHORT, "temperature": 0})
    session.has_chat = answer.ok
    if not answer.ok:
        session.has_chat = False
        if session.claims.kind in ("base", "embedding", "reward") or _no_template(answer):
            return Outcome(passed=None, note=f"no chat here: {answer.error}")
        return Outcome(passed=False, evidence=[f"status {answer.status}: {answer.error}"])
    session.seen.append(answer.whole)
    faults = [] if answer.whole.strip() or answer.tool_calls else ["the answer is empty"]
    faults += [] if answer.finish_reason in ("stop", "length") else [f"finish_reason is {answer.finish_reason!r}"]
    return Outcome(passed=not faults, evidence=faults or [f"{answer.whole.strip()[:80]!r}, {answer.finish_reason}"])


def _no_template(answer: Answer) -> bool:
    return answer.status in (400, 404, 501) and "template" in answer.error.lower()


async def completions(session: Session) -> Outcome:
    """A text is continued."""
    answer = await session.api.complete("The capital of France is", max_tokens=4, temperature=0)
    session.has_completions = answer.ok
    if answer.status in (404, 405, 501) and session.has_chat:
        return Outcome(passed=None, note=f"no /completions here: {answer.error}")
    if not answer.ok:
        return Outcome(passed=False, evidence=[f"status {answer.status}: {answer.error}"])
    return Outcome(passed=bool(answer.text), evidence=[f"{answer.text!r}"])


async def streaming(session: Session) -> Outcome:
    """The streamed answer at temperature 0 is the whole one; where they part, it was a near tie."""
    return _compare_stream(*await _pair(session))


async def _pair(session: Session) -> tuple[Answer, Answer]:
    """The same question whole and as a stream, asked once for all checks that compare the two."""
    if session.pair is None:
        path, body = _question_body(session)
        whole = await (session.api.chat(**body) if "messages" in body else session.api.complete(**body))
        session.pair = whole, await session.api.stream(path, body)
    return session.pair


def _question_body(session: Session) -> tuple[str, dict[str, Any]]:
    if session.has_chat is False:
        return "/completions", {"prompt": "The capital of France is", "max_tokens": SHORT, "temperature": 0, "logprobs": 3}
    return "/chat/completions", {"messages": QUESTION, "max_tokens": SHORT, "temperature": 0, "logprobs": True, "top_logprobs": 3}


def _compare_stream(whole: Answer, streamed: Answer) -> Outcome:
    if not whole.ok or not streamed.ok:
        failed = whole if not whole.ok else streamed
        return Outcome(passed=False, evidence=[f"status {failed.status}: {failed.error}"])
    faults = [streamed.error] if streamed.error else []
    faults += [] if streamed.done else ["the stream ended without [DONE]"]
    faults += [] if streamed.finish_reason else ["the stream gave no finish_reason"]
    if not faults and streamed.whole == whole.whole:
        return Outcome(passed=True, evidence=[f"{len(streamed.chunks)} chunks, equal to the whole answer"])
    parted = None if faults else near_tie(whole.tokens, streamed.tokens)
    if parted is None:
        faults += [f"whole: {whole.whole[:80]!r}", f"streamed: {streamed.whole[:80]!r}"]
        return Outcome(passed=False, evidence=faults)
    return Outcome(passed=True, evidence=[parted], note="parted at a near tie: batching changes the last bits of a sum")


def near_tie(a: list[TokenRow], b: list[TokenRow]) -> str | None:
    """Where two greedy answers part, when the two tokens were within TIE in logprob; None when they were not."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x.token == y.token:
            continue
        other = dict(x.top).get(y.token)
        close = other is not None and abs(x.logprob - other) <= TIE
        return f"token {i}: {x.token!r} {x.logprob:.2f} or {y.token!r} {other:.2f}" if close else None
    return None


async def usage(session: Session) -> Outcome:
    """Counts are there, add up, and agree between whole and streamed answers."""
    whole, streamed = await _pair(session)
    faults = [*_usage_faults("whole", whole), *_usage_faults("streamed", streamed)]
    if not faults and whole.usage.prompt_tokens != streamed.usage.prompt_tokens:
        faults.append(f"prompt_tokens: {whole.usage.prompt_tokens} whole, {streamed.usage.prompt_tokens} streamed")
    u = whole.usage
    return Outcome(passed=not faults, evidence=faults or [f"{u.prompt_tokens} + {u.completion_tokens} = {u.total_tokens}"])


def _usage_faults(name: str, answer: Answer) -> list[str]:
    u = answer.usage
    if u.prompt_tokens is None or u.completion_tokens is None:
        return [f"{name}: no usage"]
    faults = [] if u.prompt_tokens > 0 else [f"{name}: prompt_tokens is {u.prompt_tokens}"]
    faults += [] if u.completion_tokens >= 0 else [f"{name}: completion_tokens is {u.completion_tokens}"]
    if u.total_tokens is not None and u.total_tokens != u.prompt_tokens + u.completion_tokens:
        faults.append(f"{name}: {u.prompt_tokens} + {u.completion_tokens} is not {u.total_tokens}")
    if answer.tokens and abs(len(answer.tokens) - u.completion_tokens) > 1:
        faults.append(f"{name}: {u.completion_tokens} completion_tokens, {len(answer.tokens)} logprob rows")
    return faults


NONCES = tuple(str(10_000 + (38_213 + i * 26_417) % 90_000) for i in range(64))


async def parallel(session: Session) -> Outcome:
    """Parallel requests do not mix: the number in each comes back in its own answer and in no other."""
    nonces = NONCES[: max(2, session.parallel)]
    answers = await session.together(_echo(session, n) for n in nonces)
    faults = [f for n, a in zip(nonces, answers, strict=True) for f in _mixed(n, nonces, a)]
    held = sum(n in a.whole for n, a in zip(nonces, answers, strict=True))
    if not faults and held < len(nonces) / 2:
        alone = [n in (await _echo(session, n)).whole for n in nonces]
        if sum(alone) > held:
            faults = [f"{held} of {len(nonces)} numbers came back in parallel, {sum(alone)} one by one"]
    return Outcome(passed=not faults, evidence=faults or [f"{len(nonces)} at once, {held} numbers came back, none in another's answer"])


async def _echo(session: Session, nonce: str) -> Answer:
    if session.has_completions:
        return await session.go_on(f"Number {nonce}. Number {nonce}. Number {nonce}. Number", max_tokens=8)
    return await session.ask(f"Repeat exactly: {nonce}")


def _mixed(nonce: str, nonces: tuple[str, ...], answer: Answer) -> list[str]:
    if not answer.ok:
        return [f"{nonce}: status {answer.status}: {answer.error}"]
    others = [n for n in nonces if n != nonce and n in answer.whole]
    return [f"the answer to {nonce} holds {other}: {answer.whole.strip()[:60]!r}" for other in others]
