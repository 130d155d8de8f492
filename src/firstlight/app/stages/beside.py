"""Fetch, and the rehearsal beside it: the plan is proven on the GPUs with dummy weights while the real ones download."""

import asyncio

import msgspec

from firstlight.app import rehearsing
from firstlight.app.session import Session
from firstlight.app.stages import start
from firstlight.app.stages.failing import EngineFailed
from firstlight.rehearse.decide import decide

SMALL = ("*.json", "*.txt", "*.jinja", "*.model", "*.py", "tokenizer*", "*.tiktoken")


async def fetch(session: Session) -> str:
    """Weights on disk; where a rehearsal is due, both run at once and both are over when this returns."""
    if session.model.path is not None or not _rehearses(session):
        return await start.fetch(session)
    whole = session.model
    small = await start.fetch_small(session, SMALL)
    session.checkpoint = msgspec.structs.replace(whole, path=small.path)
    await start.overlay(session)
    download = asyncio.create_task(start.fetch_model(session))
    try:
        told = await _rehearse(session)
        fetched = await download
    finally:
        download.cancel()
    session.overlay = None
    session.checkpoint = msgspec.structs.replace(whole, path=fetched.path)
    session.save(session.checkpoint, "checkpoint.json")
    return f"fetched to {fetched.path}; meanwhile {told}"


def _rehearses(session: Session) -> bool:
    if "rehearse" in session.options.skip or session.model.format == "config-only":
        return False
    mode, best = session.options.rehearse, session.best
    on_gpu = bool(session.machine and session.machine.accelerators)
    return (on_gpu or mode == "always") and decide(mode, candidate=best, weights_missing=True, engine=best.engine.name).rehearse


async def _rehearse(session: Session) -> str:
    """A plan that is refuted does not stop the download: the weights are the same under the next plan."""
    try:
        return await rehearsing.rehearse_stage(session, beside_download=True)
    except EngineFailed as refuted:
        session.refuted = refuted
        return f"the rehearsal refuted the plan: {refuted.code}"
