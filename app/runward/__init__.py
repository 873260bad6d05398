"""Runward: durable runs of LLM agents, served over HTTP.

What is in this package, from the bottom up; a part knows only the ones before it:

    core/       pure: the state machine of a run, and what every durable actor obeys. Values and functions, no I/O.
    ports/      what the engine needs from the outside, as protocols: store, bus, clock, models, tools, telemetry.
    agents/     what agent authors write: declarations.
    engine/     workers, legs, model calls, tool calls. Knows ports only.
    stores/ models/ tools/   the adapters: databases and buses, model providers, what runs a tool.
    api/ commands/ cli   the doors: they translate, and decide nothing.
    testing/    what authors test their agents with.

This module itself is for authors: everything an agent is made of is importable from here, and `docs/authoring.md` is the guide. ::

    from runward import Agent, ToolError, tool

    @tool(effect="read")
    async def lookup_order(order_id: int) -> str:
        "Look up an order by its number."
        if order_id != 7:
            raise ToolError(f"There is no order {order_id}.")
        return "shipped"

    support = Agent(name="support", model="openai:gpt-5-mini", instructions="You help customers.", tools=[lookup_order])
"""

from runward.agents.agent import Agent
from runward.agents.approvals import Approval, Block, Rewrite
from runward.agents.builtin import BuiltinTool, ask_user, durable_wait
from runward.agents.content import File, Text
from runward.agents.contexts import RunContext, ToolContext
from runward.agents.elsewhere import ClientTool, HttpTool
from runward.agents.limitations import Unsupported
from runward.agents.models import ModelSettings, Reply, ScriptedModel, ToolCall
from runward.agents.output import Output, Verdict
from runward.agents.probes import CannotTell, DidNotHappen, Happened
from runward.agents.ready_made import injection_notice, max_output_length, max_result_length, redact
from runward.agents.rules import GuardedCall, Guardrails, Policy
from runward.agents.tools import AnyTool, Tool, tool
from runward.core.errors import BudgetExceeded, DefinitionError, NeedsInput, RunwardError, ToolError, UnknownOutcome
from runward.core.kernel.actor import Scope
from runward.core.messages import FilePart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from runward.core.runs.limits import Limits
from runward.core.usage import Usage
from runward.ports.models import ModelCallError, ModelRequest

__all__ = [
    "Agent",
    "AnyTool",
    "Approval",
    "Block",
    "BudgetExceeded",
    "BuiltinTool",
    "CannotTell",
    "ClientTool",
    "DefinitionError",
    "DidNotHappen",
    "File",
    "FilePart",
    "GuardedCall",
    "Guardrails",
    "Happened",
    "HttpTool",
    "Limits",
    "Message",
    "ModelCallError",
    "ModelRequest",
    "ModelSettings",
    "NeedsInput",
    "Output",
    "Policy",
    "ReasoningPart",
    "Reply",
    "Rewrite",
    "RunContext",
    "RunwardError",
    "Scope",
    "ScriptedModel",
    "Text",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolCallPart",
    "ToolContext",
    "ToolError",
    "ToolResultPart",
    "UnknownOutcome",
    "Unsupported",
    "Usage",
    "Verdict",
    "ask_user",
    "durable_wait",
    "injection_notice",
    "max_output_length",
    "max_result_length",
    "redact",
    "tool",
]
