"""What a provider's module hands to the client: a model that does exactly one request per call, and how to speak to it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2
from pydantic_ai.exceptions import UnsupportedSettingWarning
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from pydantic_ai.profiles import ModelProfile

from runward.models.history import Dialect
from runward.ports.models import ModelRequest

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 30.0

# A setting that a model silently leaves out may be the one that forbids retries. Once per process: filters are not safe to change later.
warnings.filterwarnings("error", category=UnsupportedSettingWarning)

SENT: ContextVar[list[bool]] = ContextVar("runward_request_sent")
"""Grows once the current call's request is handed to the connection."""

PLAIN_TEXT = ModelProfile(may_tokenize_special_tokens_in_content=False)
"""Text goes out as it is, also where the host may run open weights."""

Options = Callable[[ModelRequest, Sequence[ModelMessage]], dict[str, Any]]
"""The settings that a provider needs, for a request and its history in the library's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model ready to be called. `tells_sent`: its HTTP client reports through `SENT`."""

    model: Model[Any]
    dialect: Dialect
    options: Options
    tells_sent: bool


def any_options(request: ModelRequest, history: Sequence[ModelMessage]) -> dict[str, Any]:
    """Effort as the library spells it for every provider."""
    effort = request.settings.reasoning_effort
    return {} if effort is None else {"thinking": False if effort == "none" else effort}


def http_client() -> httpx2.AsyncClient:
    """Time-outs are the call's own; a redirect would take the key to another host."""
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=KEEPALIVE_SECONDS),
        follow_redirects=False,
        event_hooks={"request": [_sending]},
    )


def keep_quiet(*loggers: str) -> None:
    """The SDKs log requests with their bodies, and addresses that may hold a key, at lower levels than a warning."""
    for logger in loggers:
        logging.getLogger(logger).setLevel(logging.WARNING)


async def _sending(request: httpx2.Request) -> None:
    SENT.get().append(True)


keep_quiet("httpcore2", "httpx2")
