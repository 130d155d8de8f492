"""What a hub's refusal means, in words and with what to do. No message carries the token or a signed address."""

import httpx2

from firstlight.core.errors import FirstlightError, HostError, InputError

_NO_TOKEN = "set HF_TOKEN to a token that may read it"


def from_response(
    response: httpx2.Response, repo: str, revision: str, path: str | None, *, has_token: bool, attempts: int = 1
) -> FirstlightError:
    """The error of one refused request."""
    status = response.status_code
    reason = response.headers.get("x-error-code", "")
    evidence = (
        f"HTTP {status}{f' ({reason})' if reason else ''} from {response.request.url.host}",
        f"HF_TOKEN: {'given' if has_token else 'not set'}",
    )
    if reason == "GatedRepo" or status == 403:
        return _gated(repo, evidence, has_token)
    if reason == "RevisionNotFound":
        return InputError("hub-revision-not-found", f"{repo} has no revision {revision}", evidence=evidence)
    if status == 404 and (path is not None or reason == "EntryNotFound"):
        return InputError("hub-file-not-found", f"{repo} has no file {path}", evidence=evidence)
    if status == 404:
        return InputError(
            "hub-model-not-found", f"there is no model {repo} that this token may see", evidence=evidence, hint="check the spelling"
        )
    if status == 401:
        hint = "HF_TOKEN is not valid: make a new one" if has_token else _NO_TOKEN
        return InputError("hub-unauthorized", f"the hub does not let us read {repo}", evidence=evidence, hint=hint)
    if status == 429:
        hint = "wait some minutes" + ("" if has_token else ", or set HF_TOKEN: its limits are higher")
        return HostError("hub-rate-limited", f"the hub takes no more requests for now ({attempts} tries)", evidence=evidence, hint=hint)
    if status >= 500:
        return HostError("hub-failing", f"the hub fails ({attempts} tries)", evidence=evidence, hint="try again later")
    return HostError("hub-refused", f"the hub refuses to serve {path or repo}", evidence=evidence)


def _gated(repo: str, evidence: tuple[str, ...], has_token: bool) -> InputError:
    hint = (
        "ask for access on its page, with the account the token belongs to"
        if has_token
        else _NO_TOKEN + ", after asking for access on its page"
    )
    return InputError("hub-gated", f"{repo} is gated, and access was not granted", evidence=evidence, hint=hint)


def unreachable(endpoint: str, error: Exception | None, attempts: int) -> HostError:
    """No answer at all: name resolution, refused connection, timeout."""
    evidence = (f"{type(error).__name__}: {error}" if error else "no answer", f"tried {attempts} times")
    return HostError(
        "hub-unreachable", f"{endpoint} cannot be reached", evidence=evidence, hint="check the network, HF_ENDPOINT and HTTPS_PROXY"
    )
