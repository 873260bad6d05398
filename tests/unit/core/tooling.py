"""The tools of these tests: one of each kind that a run tells apart, and how their calls are screened and approved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runward.core.runs.calls import ApprovalTerms, Awaits, Call, Effect, Result, ToolTraits, parse_arguments
from runward.core.runs.facts import CallAsked, Screening


def traits(name: str, effect: Effect, **differing: Any) -> ToolTraits:
    made = ToolTraits(name=name, description="", parameters={"type": "object"}, effect=effect)
    return replace(made, **differing)


TOOLS = {
    tool.name: tool
    for tool in (
        traits("look", Effect.READ),
        traits("note", Effect.IDEMPOTENT_WRITE),
        traits("charge", Effect.NON_IDEMPOTENT_WRITE),
        traits("poke", Effect.UNCLASSIFIED),
        traits("ship", Effect.NON_IDEMPOTENT_WRITE, on_unknown="tell_model"),
        traits("paint", Effect.READ, projects=True),
        traits("bill", Effect.NON_IDEMPOTENT_WRITE, projects=True),
        traits("wire", Effect.NON_IDEMPOTENT_WRITE, probes=True),
        traits("invoice", Effect.NON_IDEMPOTENT_WRITE, probes=True, projects=True),
        traits("mail", Effect.NON_IDEMPOTENT_WRITE, probes=True, on_unknown="tell_model"),
        traits("pay", Effect.NON_IDEMPOTENT_WRITE, wants_evidence=True),
        traits("send", Effect.NON_IDEMPOTENT_WRITE, wants_evidence=True, probes=True, on_unknown="tell_model"),
        traits("owe", Effect.NON_IDEMPOTENT_WRITE, wants_evidence=True, on_unknown="tell_model"),
        traits("scan", Effect.UNCLASSIFIED, awaits=Awaits.RESULT, output_schema={"type": "object"}),
        traits("poll", Effect.READ, awaits=Awaits.RESULT, expires_seconds=60),
        traits("ask_user", Effect.READ, awaits=Awaits.ANSWER),
        traits("ask_soon", Effect.READ, awaits=Awaits.ANSWER, expires_seconds=30),
        traits("durable_wait", Effect.READ, awaits=Awaits.TIME),
    )
}

TOOL_OF = {Effect.READ: "look", Effect.IDEMPOTENT_WRITE: "note", Effect.NON_IDEMPOTENT_WRITE: "charge", Effect.UNCLASSIFIED: "poke"}


def terms(**differing: Any) -> ApprovalTerms:
    """How a call is to be approved: once and for all, with its arguments as they are, unless said otherwise."""
    made = ApprovalTerms(version="1", editable=False, expires_seconds=None, on_expiry="deny", reason=None, schema={"type": "object"})
    return replace(made, **differing)


def asked(name: str, arguments: Any = None, *, id: str = "call_1", offered: bool | None = None) -> CallAsked:
    """A call as a model asks for it. Arguments that are a text go as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return CallAsked(provider_id=id, tool_name=name, arguments=text, offered=name in TOOLS if offered is None else offered)


def screening(call: Call, gates: Mapping[str, ApprovalTerms] | None = None) -> Screening:
    """What a worker's stations 2 to 4 say of a call: known tools may run with any JSON object, those in `gates` once they are approved."""
    tool = TOOLS.get(call.name)
    if tool is None or not call.offered:
        refusal = Result(output="no such tool", is_error=True, outcome="unknown_tool")
        return Screening(call_id=call.id, traits=None, arguments="", refusal=refusal)
    canonical = parse_arguments(call.arguments)[1]
    if canonical is None:
        refusal = Result(output="not a JSON object", is_error=True, outcome="invalid_arguments")
        return Screening(call_id=call.id, traits=tool, arguments="", refusal=refusal)
    return Screening(call_id=call.id, traits=tool, arguments=canonical, refusal=None, approval=(gates or {}).get(call.name))
