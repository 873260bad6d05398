"""From a model, by name or as an object, to its client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from runward.agents.models import ScriptedModel
from runward.core.errors import DefinitionError
from runward.models.scripted import ScriptedClient
from runward.ports.clock import Clock
from runward.ports.models import ModelClient

if TYPE_CHECKING:
    from runward.models.connect import Providers


class ModelClients:
    """`ports.models.ModelClients`: one client per model and process, one HTTP client per provider.

    Keys come from the environment alone. A provider is imported when its first model is asked for, which takes seconds: a worker does that
    with `prepare` before it claims anything.
    """

    def __init__(self, clock: Clock, environ: Mapping[str, str] = os.environ) -> None:
        self._clock = clock
        self._environ = environ
        self._clients: dict[object, ModelClient] = {}
        self._providers: Providers | None = None

    def client(self, model: Any) -> ModelClient:
        """The client of a model: `provider:model`, a `ScriptedModel`, or an object that is a client already.

        Raises `DefinitionError`: for what is none of these, for a provider nobody knows, and for a missing key, naming its variable.
        """
        if isinstance(model, str | ScriptedModel):
            if model not in self._clients:
                self._clients[model] = self._made(model)
            return self._clients[model]
        if hasattr(model, "call") and hasattr(model, "name"):
            return cast(ModelClient, model)
        raise DefinitionError(
            f'{type(model).__name__} is no model: a model is "provider:model", a ScriptedModel, or an object that is called like one.'
        )

    async def prepare(self, models: Iterable[Any]) -> None:
        """Makes the clients of these models, importing providers off the event loop. Raises like `client`."""
        for model in models:
            await asyncio.to_thread(self.client, model)

    async def close(self) -> None:
        """Closes every connection. Clients given out before are not to be called any more."""
        self._clients.clear()
        if self._providers is not None:
            await self._providers.close()
            self._providers = None

    def _made(self, model: str | ScriptedModel) -> ModelClient:
        if isinstance(model, ScriptedModel):
            return ScriptedClient(model, self._clock)
        from runward.models.connect import Providers
        from runward.models.provider import ProviderClient

        if self._providers is None:
            self._providers = Providers(self._environ)
        return ProviderClient(model, self._providers.open(model))
