"""Agents: what callers can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Query as FromQuery
from starlette.responses import Response

from runward.api.asking import Asked, answer
from runward.api.routing import Answer, Route
from runward.api.schemas.requests import ReadAgent
from runward.api.schemas.values import AgentName
from runward.api.schemas.views import AgentList, AgentView
from runward.core.errors import NotFound
from runward.engine.catalog import Listed


async def list_agents(asked: Asked) -> Response:
    """Every agent, in the version that a run gets without naming one."""
    by_name: dict[str, list[Listed]] = {}
    for listed in await asked.door.catalog.all():
        by_name.setdefault(listed.name, []).append(listed)
    return answer({"data": [_manifest(versions[-1], versions) for versions in by_name.values()]})


async def read_agent(asked: Asked, name: AgentName, query: Annotated[ReadAgent, FromQuery()]) -> Response:
    """One agent: its models, tools with effects and approval, schemas and limits."""
    versions = [listed for listed in await asked.door.catalog.all() if listed.name == name]
    chosen = [listed for listed in versions if query.version in (None, listed.version)]
    if not chosen:
        raise NotFound("There is no such agent.")
    return answer(_manifest(chosen[-1], versions))


def _manifest(listed: Listed, versions: Sequence[Listed]) -> dict[str, Any]:
    return {**listed.manifest, "versions": [version.version for version in versions]}


ROUTES = (
    Route(
        method="GET",
        path="/agents",
        endpoint=list_agents,
        summary="List agents",
        tag="agents",
        answers={200: Answer(description="All of them.", model=AgentList)},
    ),
    Route(
        method="GET",
        path="/agents/{name}",
        endpoint=read_agent,
        summary="Read an agent",
        tag="agents",
        answers={200: Answer(description="Its manifest.", model=AgentView)},
    ),
)
