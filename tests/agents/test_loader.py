"""`RUNWARD_AGENTS`: where agents are found, and what stops a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from runward.agents.loader import load
from runward.core.errors import DefinitionError

HEADER = "from runward import Agent, Reply, ScriptedModel, tool\n"


def write(directory: Path, name: str, source: str, header: str = HEADER) -> str:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(header + source)
    return name


def names(entries: str | None, directory: Path) -> list[str]:
    return [f"{entry.agent.name}@{entry.agent.version}" for entry in load(entries, directory=directory).agents]


def agent(name: str, version: str = "1", model: str = "openai:gpt-5") -> str:
    return f"{name} = Agent(name={name!r}, version={version!r}, model={model!r})\n"


def test_a_module_of_the_working_directory(tmp_path: Path) -> None:
    write(tmp_path, "shop/__init__.py", "", header="")
    write(tmp_path, "shop/agents.py", "from shop.more import other\n" + agent("desk"))
    write(tmp_path, "shop/more.py", agent("other"))
    assert names("shop.agents", tmp_path) == ["other@1", "desk@1"]


def test_the_working_directory_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "desk_agents.py", agent("desk"))
    monkeypatch.chdir(tmp_path)
    assert [entry.agent.name for entry in load("desk_agents").agents] == ["desk"]


def test_files_modules_and_blanks_between(tmp_path: Path) -> None:
    write(tmp_path, "one.py", agent("one"))
    write(tmp_path, "folder/two.py", agent("two"))
    assert names(" one.py, , folder/two.py ,", tmp_path) == ["one@1", "two@1"]
    assert names(f"{tmp_path}/one.py", tmp_path) == ["one@1"]


def test_a_file_named_twice_is_one_module(tmp_path: Path) -> None:
    write(tmp_path, "one.py", agent("one"))
    assert names("one.py,./one.py", tmp_path) == ["one@1"]


def test_a_list_called_agents_says_which_and_in_which_order(tmp_path: Path) -> None:
    write(tmp_path, "some.py", agent("one") + agent("two") + agent("three") + "AGENTS = [three, one]\n")
    assert names("some.py", tmp_path) == ["three@1", "one@1"]


def test_the_version_defined_last_is_the_default(tmp_path: Path) -> None:
    write(
        tmp_path,
        "some.py",
        "new = Agent(name='desk', version='2', model='openai:x')\nold = Agent(name='desk', version='1', model='openai:x')\n",
    )
    found = load("some.py", directory=tmp_path).find("desk")
    assert found is not None and found.agent.version == "1"


def test_models_and_annotations_of_a_file_resolve(tmp_path: Path) -> None:
    source = """
from pydantic import BaseModel
class Inner(BaseModel):
    more: 'list[Order]' = []
class Order(Inner):
    order_id: int
@tool(effect="read")
def look(order: 'Order') -> 'Order':
    return order
desk = Agent(name="desk", model=ScriptedModel([Reply(text="hi")]), tools=[look])
"""
    write(tmp_path, "desk.py", source, header="from __future__ import annotations\n" + HEADER)
    (entry,) = load("desk.py", directory=tmp_path).agents
    assert "Order" in entry.agent.tools[0].parameters["$defs"]


@pytest.mark.parametrize("unset", [None, "", " , "])
def test_unset_means_the_demo_agents(tmp_path: Path, unset: str | None) -> None:
    assert names(unset, tmp_path) == ["support@1", "echo@1"]


# -- what stops a start ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module\n", r"cannot be imported \(line 2 of bad\.py\): ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:\n", r"cannot be imported \(line 2 of bad\.py\): SyntaxError"),
        ("raise RuntimeError('no DSN')\n", r"line 2 of bad\.py\): RuntimeError: no DSN"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n", "E: no message"),
        ("@tool\ndef look(order_id): ...\n", r"look: parameter `order_id` has no type"),
        (agent("desk", model="gpt"), "model is 'gpt'"),
        ("x = 1\n", "it defines no agent"),
        (agent("desk") + "AGENTS = desk\n", "AGENTS must be a list of agents"),
        (agent("desk") + "AGENTS = [desk, 3]\n", "AGENTS must be a list of agents"),
        ("a = Agent(name='d', model='openai:x')\nb = Agent(name='d', model='openai:y')\n", "'d' version '1' is defined twice"),
    ],
)
def test_a_start_is_stopped_with_the_entry_and_the_reason(tmp_path: Path, source: str, reason: str) -> None:
    write(tmp_path, "bad.py", source)
    with pytest.raises(DefinitionError, match=reason) as raised:
        load("bad.py", directory=tmp_path)
    if "twice" not in reason:
        assert str(raised.value).startswith("RUNWARD_AGENTS: bad.py: ")


def test_a_module_that_failed_is_imported_anew(tmp_path: Path) -> None:
    write(tmp_path, "desk.py", "raise RuntimeError\n")
    with pytest.raises(DefinitionError):
        load("desk.py", directory=tmp_path)
    write(tmp_path, "desk.py", agent("desk"))
    assert names("desk.py", tmp_path) == ["desk@1"]


def test_values_of_settings_are_not_told(tmp_path: Path) -> None:
    source = "from pydantic import BaseModel\nclass Settings(BaseModel):\n    dsn: int\nSettings(dsn='s3cr3t')\n"
    write(tmp_path, "bad.py", source)
    with pytest.raises(DefinitionError, match=r"ValidationError: `dsn`: Input should be a valid integer") as raised:
        load("bad.py", directory=tmp_path)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize("entry", ["nowhere.py", "nowhere.yaml", "folder/nowhere.yml"])
def test_a_file_that_is_not_there(tmp_path: Path, entry: str) -> None:
    with pytest.raises(DefinitionError, match="there is no such file"):
        load(entry, directory=tmp_path)


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"^RUNWARD_AGENTS: no_such\.agents: it cannot be imported: ModuleNotFoundError"):
        load("no_such.agents", directory=tmp_path)


def test_two_modules_that_define_the_same_agent_differently(tmp_path: Path) -> None:
    write(tmp_path, "one.py", agent("desk", model="openai:x"))
    write(tmp_path, "two.py", agent("desk", model="openai:y"))
    with pytest.raises(DefinitionError, match="defined twice, and the two differ"):
        load("one.py,two.py", directory=tmp_path)


# -- YAML ------------------------------------------------------------------------------------------------------------------------

FULL = """
agents:
  - name: desk
    version: "2"
    description: A desk.
    model: openai:gpt-5-mini
    fallback_models: [anthropic:claude-haiku-4-5]
    model_settings: {temperature: 0.2, max_output_tokens: 2000}
    instructions: |
      You help customers.
    tools:
      - http:
          name: stock
          description: How many?
          url: https://erp.internal/stock/{sku}
          parameters: {type: object, properties: {sku: {type: string}}, required: [sku]}
          headers: {Authorization: "Bearer ${ERP_TOKEN}"}
          effect: read
          timeout_seconds: 5
      - client: {name: pick_file, description: Pick., parameters: {type: object}, expires_seconds: 60}
      - http: {name: cancel, description: Cancel., url: "https://erp.internal/cancel", method: POST, needs_approval: {editable: true}}
      - ask_user
    output: {schema: {type: object, properties: {answer: {type: integer}}, required: [answer]}, mode: tool}
    limits: {max_steps: 8, timeout_seconds: 60, max_cost_usd: "1.00"}
    policy: {require_approval: [stock]}
  - {name: echo, model: "openai:gpt-5-mini"}
"""


def test_agents_in_yaml_need_no_python(tmp_path: Path) -> None:
    write(tmp_path, "agents.yaml", FULL, header="")
    desk, echo = (entry.agent for entry in load("agents.yaml", directory=tmp_path).agents)
    assert (desk.name, desk.version, desk.instructions, desk.limits.max_steps) == ("desk", "2", "You help customers.\n", 8)
    assert [(tool.name, tool.kind, tool.approval is not None) for tool in desk.tools] == [
        ("stock", "http", False),
        ("pick_file", "client", False),
        ("cancel", "http", True),
        ("ask_user", "builtin", False),
    ]
    assert desk.model_settings.temperature == 0.2 and desk.policy.require_approval == ("stock",) and desk.output is not None
    assert (echo.version, echo.tools) == ("1", ())


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("agents:\n- [", "it is not YAML: line 2"),
        ("agents: !!python/object/apply:os.system ['true']", "it is not YAML"),
        ("agents: {}", "agents must be a list"),
        ("agents: []", "agents is empty"),
        ("[]", "must be a mapping"),
        ("agent: []", "'agent' is not known here; known are agents"),
        ("agents: [{model: 'openai:x'}]", r"agents\[0\]: name is missing"),
        ("agents: [{name: a, model: 'openai:x', tool: []}]", r"agents\[0\]: 'tool' is not known here"),
        ("agents: [{name: a, name: b, model: 'openai:x'}]", "the key 'name' comes twice"),
        ("agents: [{name: a, version: 1, model: 'openai:x'}]", r"\(a\): version must be a text; put it in quotes"),
        ("agents: [{name: a, model: gpt}]", r"\(a\): Agent 'a': model is 'gpt'"),
        ("agents: [{name: a, model: 'openai:x', limits: {max_steps: '8'}}]", "limits: max_steps: Input should be a valid integer"),
        ("agents: [{name: a, model: 'openai:x', limits: {max_steps: 0}}]", r"limits: Limits\.max_steps must be at least 1"),
        ("agents: [{name: a, model: 'openai:x', limits: {max_cost_usd: 1.10}}]", "limits: max_cost_usd: Input should be a valid string"),
        ("agents: [{name: a, model: 'openai:x', limits: {steps: 8}}]", "limits: 'steps' is not known here"),
        ("agents: [{name: a, model: 'openai:x', policy: {deny_tools: [b]}}]", "its policy names the tool 'b'"),
        ("agents: [{name: a, model: 'openai:x', fallback_models: [3]}]", "fallback_models must be a list of texts"),
        ("agents: [{name: a, model: 'openai:x', tools: [{mcp: {url: 'https://x'}}]}]", r"tools\[0\]: this version .* no MCP tools"),
        ("agents: [{name: a, model: 'openai:x', tools: [{http: {name: b}}]}]", r"tools\[0\]: description: Field required"),
        ("agents: [{name: a, model: 'openai:x', tools: [look]}]", r"tools\[0\] must be"),
        ("agents: [{name: a, model: 'openai:x', tools: [{http: {}, client: {}}]}]", r"tools\[0\] must be one of"),
        ("agents: [{name: a, model: 'openai:x', tools: [ask_user, ask_user]}]", "two tools are called 'ask_user'"),
        (
            "agents: [{name: a, model: 'openai:x', output: {schema: {const: 2020-01-01}}}]",
            "output: it holds something that JSON does not know",
        ),
        ("agents: [{name: a, model: 'openai:x', output: {schema: {type: objekt}}}]", r"output: Output\.schema is not a JSON Schema"),
        ("agents: [{name: a, model: 'openai:x', output: {schema: {}, verify: check}}]", "output: 'verify' is not known here"),
    ],
)
def test_yaml_is_strict(tmp_path: Path, source: str, reason: str) -> None:
    write(tmp_path, "agents.yaml", source, header="")
    with pytest.raises(DefinitionError, match=reason) as raised:
        load("agents.yaml", directory=tmp_path)
    assert str(raised.value).startswith("RUNWARD_AGENTS: agents.yaml")


def test_yaml_never_echoes_values_of_headers(tmp_path: Path) -> None:
    source = "agents: [{name: a, model: 'openai:x', tools: [{http: {name: b, description: c, url: 'https://x', headers: {k: [s3cr3t]}}}]}]"
    write(tmp_path, "agents.yaml", source, header="")
    with pytest.raises(DefinitionError) as raised:
        load("agents.yaml", directory=tmp_path)
    assert "s3cr3t" not in str(raised.value)
