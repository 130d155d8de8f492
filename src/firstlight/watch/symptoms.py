"""What a line that may mean anything means now: "no available shared memory broadcast block" during slow work, or in a hang."""

from firstlight.watch.stall import Stall, Verdict


def explain_wait(verdict: Verdict, phase: str) -> str:
    """One line for the user on a wait between processes."""
    if verdict.state is Stall.MOVING:
        return f"one process waits for another while {phase} goes on ({verdict.because}): harmless"
    if verdict.state is Stall.STALLED:
        return f"one process waits for another and nothing moves ({verdict.because}): this is a hang"
    return f"one process waits for another during {phase}: harmless as long as something moves"
