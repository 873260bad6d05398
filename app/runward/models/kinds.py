"""The kinds of failed calls, each with its sentence for people."""

from __future__ import annotations

from runward.ports.models import ModelCallError

MESSAGES = {
    "rate_limited": "The model's provider asks to slow down.",
    "server_error": "The model's provider failed or is overloaded.",
    "network": "The connection to the model's provider failed.",
    "timeout": "The model did not answer in time.",
    "bad_response": "The model's provider sent something that is not an answer.",
    "cut_off": "The model's answer broke off before its end.",
    "auth": "The model's provider does not accept the key, or the key may not use this model.",
    "quota": "The quota or the credit at the model's provider is used up.",
    "rejected": "The model's provider does not accept the request.",
    "context_overflow": "The run's messages are too long for the model.",
    "content_filter": "The model's provider blocked the request by its content filter.",
}

TRANSIENT = frozenset({"rate_limited", "server_error", "network", "timeout", "bad_response", "cut_off"})


def failure(
    kind: str, *, billed: bool, started: bool, detail: str = "", status: int | None = None, retry_after: float | None = None
) -> ModelCallError:
    """An error of this kind. `detail` is a second sentence of our own, never the provider's. `started`: content had arrived."""
    parts = (MESSAGES[kind], detail, "" if status is None else f"(status {status})")
    return ModelCallError(
        kind,
        " ".join(part for part in parts if part),
        transient=kind in TRANSIENT,
        billed=billed,
        after_content=started,
        retry_after=retry_after,
        status=status,
    )
