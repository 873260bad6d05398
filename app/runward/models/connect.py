"""Opens providers, each when its first model is asked for: a key from the environment, one HTTP client, nothing of the others imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models import infer_model
from pydantic_ai.providers import Provider, infer_provider

from runward.core.errors import DefinitionError
from runward.models.history import Dialect
from runward.models.names import missing_variable, split_name
from runward.models.opened import Opened, any_options, http_client
from runward.models.replay import format_of


class Providers:
    """The providers of one process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._providers: dict[str, Provider[Any]] = {}
        self._clients: list[httpx2.AsyncClient] = []

    def open(self, name: str) -> Opened:
        """The model of this name. Raises `DefinitionError` for an unknown provider and for a missing key."""
        provider, model = split_name(name)
        variable = missing_variable(name, self._environ)
        if variable is not None:
            raise DefinitionError(f"{name!r} needs the environment variable {variable}.", code="missing_key")
        match provider:
            case "openai":
                from runward.models import with_openai

                return with_openai.chat(name, model, self._openai(), with_openai.options)
            case "openai-responses":
                from runward.models import with_openai

                return with_openai.responses(name, model, self._openai())
            case "anthropic":
                from runward.models import with_anthropic

                return with_anthropic.messages(name, model, self._anthropic())
            case _:
                return self._any(name, provider, model)

    async def close(self) -> None:
        """Closes every connection."""
        own = [provider._own_http_client for provider in self._providers.values() if provider._own_http_client is not None]
        for client in (*self._clients, *own):
            await client.aclose()
        self._clients.clear()
        self._providers.clear()

    def _openai(self) -> Provider[Any]:
        from runward.models import with_openai

        if "openai" not in self._providers:
            self._providers["openai"] = with_openai.provider(self._environ, self._client())
        return self._providers["openai"]

    def _anthropic(self) -> Provider[Any]:
        from runward.models import with_anthropic

        if "anthropic" not in self._providers:
            self._providers["anthropic"] = with_anthropic.provider(self._environ, self._client())
        return self._providers["anthropic"]

    def _any(self, name: str, provider: str, model: str) -> Opened:
        """A provider that only the library knows, with its own client and from its own environment variables."""
        try:
            inferred = infer_model(name, self._inferred)
        except (UserError, ValueError, ImportError) as error:
            raise DefinitionError(f"{name!r} cannot be used: {error}", code="unknown_model") from None
        if type(inferred).__name__ == "OpenAIChatModel":  # by name, because another provider's worker need not import it
            from runward.models import with_openai

            return with_openai.chat(name, model, self._providers[provider], any_options, tells_sent=False)
        dialect = Dialect(format=format_of(name), thinks_back=_all, url_types=())  # for some of them the library fetches files here
        return Opened(model=inferred, dialect=dialect, options=any_options, tells_sent=False)

    def _inferred(self, provider: str) -> Provider[Any]:
        if provider not in self._providers:
            self._providers[provider] = infer_provider(provider)
        return self._providers[provider]

    def _client(self) -> httpx2.AsyncClient:
        self._clients.append(http_client())
        return self._clients[-1]


def _all(part: ThinkingPart) -> bool:
    return True
