"""What went wrong with a provider's call, as a `ModelCallError`. Nothing of the provider's own words, addresses or headers gets through."""

from __future__ import annotations

from pydantic_ai import exceptions as library

from runward.models.kinds import failure
from runward.ports.models import ModelCallError

NEVER_SENT = ("pool", "connect")
"""Phases of a connection's failure in which the request had not left."""

BLOCKED = frozenset({"content_filter", "content_policy_violation", "image_content_policy_violation"})
"""Codes of OpenAI's wires, and of Azure's, for a request that a content filter stopped."""

UNFIT = frozenset(
    {
        *("invalid_prompt", "invalid_image", "invalid_image_format", "invalid_image_mode", "invalid_image_url", "invalid_base64_image"),
        *("image_too_large", "image_too_small", "image_parse_error", "image_file_too_large", "image_file_not_found"),
        *("unsupported_image_media_type", "empty_image_file", "failed_to_download_image"),
    }
)
"""Codes by which the Responses API says inside its stream, without a status, that it will not take the request."""

IMPOSSIBLE = "It asks for something that this model, or its client, cannot do."


class Broken(Exception):
    """Raised where an answer shows that it is not whole, or a request that it cannot be written. `kind` is one of `kinds.MESSAGES`."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why


def failure_of(error: Exception, *, started: bool, sent: bool) -> ModelCallError:
    """The typed form of whatever ended a call. `started`: content had arrived. `sent`: the request may have left before that."""
    match error:
        case Broken():
            return failure(error.kind, detail=error.why, billed=sent, started=started)
        case library.ModelAPIError(provider_error_code=code) if code in BLOCKED:
            return _refused("content_filter", error, started)
        case library.ModelAPIError(provider_error_code=code) if code in UNFIT:
            return _refused("rejected", error, started)
        case library.ModelContextWindowExceededError():
            return _refused("context_overflow", error, started)
        case library.ModelAuthenticationError():
            return _refused("auth", error, started)
        case library.ModelQuotaExceededError():
            return _refused("quota", error, started)
        case library.ModelRequestRejectedError():
            return _refused("rejected", error, started)
        case library.ModelRateLimitError():
            return _refused("rate_limited", error, started)
        case library.ModelUnavailableError() | library.ModelServerError():
            return _refused("server_error", error, started)
        case library.ModelConnectionError():
            kind = "timeout" if isinstance(error, library.ModelTimeoutError) else "network"
            return failure(kind, billed=started or error.phase not in NEVER_SENT, started=started)
        case library.ModelHTTPError(status_code=status) if 400 <= status < 500:
            return _refused("server_error" if status in (408, 409, 425) else "rejected", error, started)
        case library.AgentRunError():
            return failure("bad_response", billed=True, started=started)
        case library.UserError() | library.UnsupportedSettingWarning() | NotImplementedError():
            return failure("rejected", detail=IMPOSSIBLE, billed=sent, started=started)
        case _ if sent:
            return failure("bad_response", detail=f"Reading it failed with {type(error).__name__}.", billed=True, started=started)
        case _:
            return failure("rejected", detail=f"Writing it failed with {type(error).__name__}.", billed=False, started=started)


def _refused(kind: str, error: library.ModelAPIError, started: bool) -> ModelCallError:
    """The provider said no; inside an open stream it may charge for what it sent until then."""
    status = error.status_code if isinstance(error, library.ModelHTTPError) else None
    return failure(kind, billed=started or error.in_stream, started=started, status=status, retry_after=error.retry_after)
