"""The documented examples: they load, they pass `mypy --strict` as a user's project would run it, and mistakes in them are caught."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import runward
from runward.agents.limitations import unsupported
from runward.agents.loader import load

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = Path(__file__).with_name("examples")
GUIDE = ROOT / "docs" / "authoring.md"

MISTAKES = {
    "an effect that is none": (
        '@tool(effect="reads")\ndef look(order_id: int) -> str: ...',
        'No overload variant of "tool" matches argument type',
    ),
    "a resource the shop does not have": (
        '@tool(effect="read")\ndef look(ctx: ToolContext[Shop, ShopContext]) -> str:\n    return str(ctx.resources.till)',
        '"Shop" has no attribute "till"',
    ),
    "a field the context does not have": (
        "def say(ctx: RunContext[Shop, ShopContext]) -> str:\n    return ctx.context.name",
        '"ShopContext" has no attribute "name"',
    ),
    "a context that is written to": (
        "def say(ctx: RunContext[Shop, ShopContext]) -> None:\n    ctx.step = 3",
        'Property "step" defined in "RunContext" is read-only',
    ),
    "a tool called with the wrong type": (
        "greeting: str = greet(7)",
        'Argument 1 to "greet" of "Desk" has incompatible type "int"; expected "str"',
    ),
    "a tool's result taken for another": ("number: int = greet('Ann')", 'expression has type "str", variable has type "int"'),
    "a function that is no tool": ("def look() -> str: ...\nAgent(name='a', model='openai:x', tools=[look])", 'expected "AnyTool"'),
    "an agent without a model": ("Agent(name='a')", 'Missing named argument "model"'),
    "a misspelt option": ("Agent(name='a', model='openai:x', tool=[])", 'Unexpected keyword argument "tool"'),
    "a limit of the wrong type": ("Limits(max_cost_usd=1.0)", 'incompatible type "float"; expected "str | None"'),
    "an expiry that is none": ("Approval(on_expiry='approve')", "incompatible type \"Literal['approve']\""),
    "a mode that is none": ("Output(schema=Answer, mode='strict')", "incompatible type \"Literal['strict']\""),
    "an error that is none": ("Reply(error='boom')", "incompatible type \"Literal['boom']\""),
    "a verifier that returns a bool": (
        "def check(candidate: Answer, ctx: RunContext[Shop, ShopContext]) -> bool:\n    return True\nOutput(schema=Answer, verify=check)",
        'Argument "verify" to "Output" has incompatible type',
    ),
    "a predicate that returns a text": (
        "def when(arguments: Mapping[str, Any], ctx: ToolContext[Shop, ShopContext]) -> str:\n    return ''\nApproval(when=when)",
        'Argument "when" to "Approval" has incompatible type',
    ),
    "a probe that returns a bool": (
        "def probe(key: str, arguments: Mapping[str, Any], ctx: ToolContext) -> bool:\n    return True\n\n"
        "@tool(effect='read', probe=probe)\ndef look() -> str: ...",
        'No overload variant of "tool" matches argument types',
    ),
    "a lifespan that takes arguments": (
        "@asynccontextmanager\nasync def opened(name: str) -> AsyncIterator[str]:\n    yield name\n\n"
        "Agent(name='a', model='openai:x', lifespan=opened)",
        'Argument "lifespan" to "Agent" has incompatible type',
    ),
    "an answer of ctx.generate taken for another": (
        "async def ask(ctx: RunContext) -> None:\n    number: int = await ctx.generate('How many?')",
        'expression has type "str", variable has type "int"',
    ),
}

HEADER = """
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from runward import Agent, Approval, Limits, Output, Reply, RunContext, ToolContext, tool
from shop import Answer, Shop, ShopContext, greet
"""


def blocks() -> list[str]:
    """The Python of the guide."""
    return re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(400)
def test_examples_are_strictly_typed_and_mistakes_are_caught(tmp_path: Path) -> None:
    """One run of `mypy --strict`, as a user's project makes it: the examples, the guide's Python as one module, one file per mistake."""
    (tmp_path / "shop.py").write_text((EXAMPLES / "shop.py").read_text())
    (tmp_path / "guide.py").write_text("\n".join(blocks()))
    for index, (source, _) in enumerate(MISTAKES.values()):
        (tmp_path / f"mistake_{index}.py").write_text(HEADER + source + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={ROOT / '.cache' / 'mypy-examples'}", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MYPY")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360)
    assert done.returncode == 1, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if ": error: " in line:
            found.setdefault(line.split(":", 1)[0], []).append(line)
    assert found.pop("shop.py", []) + found.pop("guide.py", []) == []
    missed = {
        mistake: found.get(f"mistake_{index}.py", [])
        for index, (mistake, (_, complaint)) in enumerate(MISTAKES.items())
        if not any(complaint in line for line in found.get(f"mistake_{index}.py", []))
    }
    assert missed == {}


def test_the_example_agents_load() -> None:
    registry = load(str(EXAMPLES / "shop.py"))
    assert [f"{entry.agent.name}@{entry.agent.version}" for entry in registry.agents] == ["support@1", "support@2", "demo@1", "echo@1"]


LOOSE = """
from runward import Agent, Approval, Block, ClientTool, Guardrails, Limits, Output, Policy, Reply, Rewrite, ScriptedModel
from runward import ToolCall, ToolContext, Verdict, tool

@tool(effect="read")
async def look(order_id: int, ctx: ToolContext, gate: bool = False) -> dict:
    return {"order_id": order_id}

@tool(effect="read")
def blocking(seconds: float, ctx: ToolContext) -> str:
    return "awake"

@tool(effect="non_idempotent_write", needs_approval=Approval(editable=True))
async def discount(order_id: int, percent: int, ctx: ToolContext) -> str:
    return ""

@tool(effect="read", to_model_output=lambda result: {"price": result["price"]})
async def quote(order_id: int, ctx: ToolContext) -> dict:
    return {"price": 12, "cost": 3}

pick = ClientTool(name="pick", description="Pick.", parameters={"type": "object", "properties": {}})

def answer(request) -> Reply:
    calls = [ToolCall(name, arguments, **extra) for name, arguments, extra in ()]
    return Reply(text="", tool_calls=calls, finish="tool_calls" if calls else "stop", error=None)

def check(candidate, ctx) -> Verdict:
    return Verdict.verified() if candidate["answer"] == 42 else Verdict.rejected("check the sum again")

def no_gifts(call, ctx):
    return Block("no") if call.tool_name == "look" else Rewrite({})

TOOLS = [look, blocking, discount, quote, pick]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], "additionalProperties": False}
plain = Agent(name="plain", version="1", model=ScriptedModel(answer), instructions="Do.", tools=TOOLS, limits=Limits(max_steps=20))
verified = Agent(name="verified", model=ScriptedModel(answer), tools=[look], output=Output(schema=SCHEMA, verify=check))
backed = Agent(name="backed-up", model=ScriptedModel(answer), fallback_models=[ScriptedModel(lambda request: Reply(text="x"))], tools=TOOLS)
guards = Guardrails(on_tool_call=no_gifts)
guarded = Agent(name="guarded", model=ScriptedModel(answer), tools=TOOLS, guardrails=guards, policy=Policy(deny_tools=["look"]))
"""


def test_untyped_spellings_load_too(tmp_path: Path) -> None:
    """Bare `ToolContext`, functions without types, dicts for schemas: what a first sketch looks like."""
    (tmp_path / "loose.py").write_text(LOOSE)
    registry = load("loose.py", directory=tmp_path)
    assert [entry.agent.name for entry in registry.agents] == ["plain", "verified", "backed-up", "guarded"]
    plain = registry.find("plain")
    assert plain is not None and unsupported(plain.agent) == ()


def test_the_guide_runs_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "guide.py").write_text("\n".join(blocks()))
    assert load("guide.py", directory=tmp_path).agents


def test_every_public_name_is_documented() -> None:
    assert sorted(runward.__all__) == runward.__all__
    silent = [name for name in runward.__all__ if not inspect.getdoc(getattr(runward, name))]
    assert not silent
    unsaid = [name for name in runward.__all__ if name not in GUIDE.read_text()]
    assert not unsaid, "not in docs/authoring.md"


def test_the_root_exports_what_it_imports() -> None:
    tree = ast.parse(Path(runward.__file__ or "").read_text())
    imported = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(runward.__all__)
