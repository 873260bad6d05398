"""How a request becomes a call: caller, permission, path, query and body, in this order, before the route's function is entered."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from runward.api.asking import Asked
from runward.api.auth import narrowed
from runward.api.bodies import read_json
from runward.api.origins import check_keyless
from runward.api.permissions import OPENED_BY_TOKENS, PERMISSIONS, Needs
from runward.api.query_strings import Query, read_query, tokens_in
from runward.api.validation import invalid
from runward.core.errors import NotFound, NotPermitted, Throttled, Unavailable
from runward.core.ids import is_budget_key, is_id
from runward.engine.callers import LOCAL, Allow, Permission

BUDGET_KEY = "key"
"""The one part of a path that is no id."""

Endpoint = Callable[..., Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a route, for the OpenAPI document. `media_type` is for bodies that no model describes."""

    description: str
    model: type[BaseModel] | None = None
    media_type: str | None = None
    headers: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route. Its function's parameters say what is read: `asked`, those of the path, `query` and `body`; its docstring describes it.

    `turned_away` answers while the store is away or the tenant asks too often, where an error status would do harm.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    answers: Mapping[int, Answer]
    headers: Sequence[str] = ()
    tag: str = "runs"
    turned_away: Callable[[Asked], Response] | None = None
    permission: Needs = field(init=False)
    opened_by: Allow | None = field(init=False)

    @property
    def reads_query(self) -> bool:
        """Whether its function takes more of a query than `tenant`."""
        return "query" in inspect.signature(self.endpoint).parameters

    def __post_init__(self) -> None:
        object.__setattr__(self, "permission", PERMISSIONS[f"{self.method} {self.path}"])
        object.__setattr__(self, "opened_by", OPENED_BY_TOKENS.get(f"{self.method} {self.path}"))


class DoorRoute(APIRoute):
    """FastAPI's route, for its document and its router; requests are read by our own rules (R46), which its machinery cannot keep."""

    def __init__(self, path: str, endpoint: Endpoint, *, route: Route, **options: Any) -> None:
        self._route = route
        parameters = inspect.signature(endpoint, eval_str=True).parameters
        self._path_names = tuple(name for name in parameters if f"{{{name}}}" in path)
        self._query = _model(parameters.get("query"))
        self._no_query = None if self._query is None else {"query": self._query()}
        self._body = _model(parameters.get("body"))
        self._body_optional = self._body is not None and parameters["body"].default is None
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self._handle

    async def _handle(self, request: Request) -> Response:
        asked = Asked(request.scope, request.receive)
        needs = self._route.permission
        if needs is None:
            return await self._route.endpoint(asked)
        try:
            return await self._enter(asked, needs if isinstance(needs, tuple) else (needs,))
        except (Unavailable, Throttled):
            if self._route.turned_away is None:
                raise
            return self._route.turned_away(asked)

    async def _enter(self, asked: Asked, permissions: Sequence[Permission]) -> Response:
        given = [value for name, value in asked.scope["headers"] if name == b"authorization"]
        raw = asked.scope["query_string"]
        reads = self._route.method == "GET"  # in an address a token gets into histories and previews: it can do nothing there but read
        caller = await asked.authenticator.caller(given, tokens_in(raw) if raw and reads else ())
        if caller is LOCAL:
            check_keyless(asked.headers, method=self._route.method, origins=asked.door.cors_origins)
        if caller.grant is not None and self._route.opened_by not in caller.grant.allows:
            raise NotPermitted("This access token does not open this.")
        caller.require(*permissions)
        asked.rates.take(caller)
        asked.caller = replace(caller, address=None if asked.client is None else asked.client.host)
        arguments = self._path(asked)
        if raw:
            query = read_query(self._query or Query, raw, may_have_token=reads)
            asked.caller = narrowed(asked.caller, query.tenant)
            if self._query is not None:
                arguments["query"] = query
        elif self._no_query is not None:
            arguments |= self._no_query
        if self._body is not None:
            arguments["body"] = await self._read_body(asked, self._body)
        return await self._route.endpoint(asked, **arguments)

    def _path(self, asked: Asked) -> dict[str, Any]:
        """Ids have one spelling: what is escaped, or could not be an id, is not there. The key of a budget may be escaped: many programs do
        that to a colon."""
        arguments = {name: asked.path_params[name] for name in self._path_names}
        escaped = b"%" in asked.scope.get("raw_path", b"") and arguments.keys() != {BUDGET_KEY}
        if arguments and (escaped or not all(_may_be(name, value) for name, value in arguments.items())):
            raise NotFound("There is nothing at this address.")
        return arguments

    async def _read_body(self, asked: Asked, model: type[BaseModel]) -> BaseModel | None:
        asked.sent = await read_json(asked, asked.door.max_body_bytes, optional=self._body_optional)
        if asked.sent is None and self._body_optional:
            return None
        try:
            return model.model_validate(asked.sent)
        except ValidationError as error:
            raise invalid(error, asked.sent) from None


def _may_be(name: str, value: str) -> bool:
    return is_budget_key(value) if name == BUDGET_KEY else is_id(value)


def _model(parameter: inspect.Parameter | None) -> Any:
    """The model of a parameter, whether it is annotated, optional, or neither."""
    if parameter is None:
        return None
    annotation: Any = parameter.annotation
    while not isinstance(annotation, type):
        annotation = get_args(annotation)[0]
    return annotation
