"""Models of OpenAI, and of everybody else who speaks Chat Completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
from pydantic_ai.messages import ModelMessage, ThinkingPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers import Provider
from pydantic_ai.providers.openai import OpenAIProvider

from runward.models.chat import ChatModel
from runward.models.history import Dialect
from runward.models.lean import LeanOpenAI
from runward.models.opened import PLAIN_TEXT, Opened, Options, keep_quiet
from runward.models.replay import format_of
from runward.ports.models import ModelRequest

keep_quiet("openai")


def provider(environ: Mapping[str, str], client: httpx2.AsyncClient) -> Provider[Any]:
    """OpenAI, or whatever answers at `OPENAI_BASE_URL`; a server of one's own may need no key."""
    key, url = environ.get("OPENAI_API_KEY") or "none", environ.get("OPENAI_BASE_URL") or None
    return OpenAIProvider(openai_client=LeanOpenAI(api_key=key, base_url=url, http_client=client))


def chat(name: str, model: str, provider: Provider[Any], options: Options, *, tells_sent: bool = True) -> Opened:
    """A model on Chat Completions."""
    dialect = Dialect(format=format_of(name), thinks_back=_in_its_own_field)
    return Opened(model=ChatModel(model, provider=provider, profile=PLAIN_TEXT), dialect=dialect, options=options, tells_sent=tells_sent)


def responses(name: str, model: str, provider: Provider[Any]) -> Opened:
    """A model on the Responses API."""
    dialect = Dialect(format=format_of(name), thinks_back=_encrypted, url_types=("image/", "application/pdf"))
    asked = OpenAIResponsesModel(model, provider=provider, profile=PLAIN_TEXT)
    return Opened(model=asked, dialect=dialect, options=options, tells_sent=True)


def options(request: ModelRequest, history: Sequence[ModelMessage]) -> dict[str, Any]:
    """OpenAI stores nothing of ours; effort goes out as it is, also to a model that the library does not know."""
    effort = request.settings.reasoning_effort
    return {"openai_store": False} if effort is None else {"openai_store": False, "openai_reasoning_effort": effort}


def _in_its_own_field(part: ThinkingPart) -> bool:
    return part.id is not None and part.id != "content"


def _encrypted(part: ThinkingPart) -> bool:
    return bool(part.signature or (part.provider_details or {}).get("raw_content"))
