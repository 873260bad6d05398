"""R35: policies only narrow; the ready-made ones; which models may be asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward import Agent, ClientTool, DefinitionError, HttpTool, Policy, ScriptedModel, tool
from runward.agents.manifest import manifest
from runward.agents.tools import EffectName, RiskName
from runward.core.runs.calls import Effect, Risk, ToolTraits

TOOLS, MODELS, EFFECTS, RISKS = ("look", "note", "charge"), ("a:1", "a:2", "b:1"), get_args(EffectName), get_args(RiskName)
PERMISSIONS = ("crm", "payments")


def traits(name: str, effect: str, risk: str | None = None, *permissions: str) -> ToolTraits:
    level = None if risk is None else Risk(risk)
    return ToolTraits(name=name, description="", parameters={}, effect=Effect(effect), risk=level, permissions=permissions)


EVERY = [
    traits(name, effect, risk, *permissions)
    for name in TOOLS
    for effect in EFFECTS
    for risk in (None, *RISKS)
    for permissions in ((), ("crm",), PERMISSIONS)
]


def some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=3)


policies = st.builds(
    Policy,
    allow_tools=st.none() | some(TOOLS),
    deny_tools=some(TOOLS),
    require_approval=some(TOOLS),
    allow_models=st.none() | some(MODELS),
    deny_models=some(MODELS),
    allow_effects=st.none() | some(EFFECTS),
    approve_effects=some(EFFECTS),
    allow_permissions=st.none() | some(PERMISSIONS),
    approve_permissions=some(PERMISSIONS),
    max_risk=st.none() | st.sampled_from(RISKS),
    approve_risk=st.none() | st.sampled_from(RISKS),
    max_depth=st.none() | st.integers(0, 3),
)


@given(policies, policies)
def test_R35_what_two_policies_make_together_is_what_each_of_them_allows(mine: Policy, theirs: Policy) -> None:
    """No more than the one and no more than the other, and not less either; the order says nothing."""
    both, other_way = mine.narrowed(theirs), theirs.narrowed(mine)
    for made in EVERY:
        assert both.permits(made) == (mine.permits(made) and theirs.permits(made))
        assert both.asks(made) == (mine.asks(made) or theirs.asks(made))
        assert (both.permits(made), both.asks(made)) == (other_way.permits(made), other_way.asks(made))
    for model in MODELS:
        assert both.permits_model(model) == (mine.permits_model(model) and theirs.permits_model(model))
    depths = [each.max_depth for each in (mine, theirs) if each.max_depth is not None]
    assert both.max_depth == (min(depths) if depths else None)
    assert both.narrowed(both) == both.narrowed(mine) == both


@given(policies)
def test_a_policy_comes_back_from_its_json(policy: Policy) -> None:
    assert Policy(**policy.to_json()) == policy and policy.narrowed(Policy()).to_json().keys() == policy.to_json().keys()


def test_the_ready_made_ones_go_by_effects() -> None:
    table = {
        effect: [
            (policy.permits(traits("any", effect)), policy.asks(traits("any", effect)))
            for policy in (Policy(), Policy.read_only(), Policy.supervised(), Policy.locked_down())
        ]
        for effect in EFFECTS
    }
    assert table == {
        "read": [(True, False), (True, False), (True, False), (True, True)],
        "idempotent_write": [(True, False), (False, False), (True, True), (False, True)],
        "non_idempotent_write": [(True, False), (False, False), (True, True), (False, True)],
        "unclassified": [(True, False), (False, False), (True, True), (False, True)],
    }
    assert Policy.locked_down().max_depth == 0


def test_the_ready_made_ones_go_by_risk_and_permissions_besides() -> None:
    harmless, files, dear = traits("a", "read"), traits("b", "read", None, "crm"), traits("c", "read", "high")
    small = traits("d", "idempotent_write", "low")
    read_only, supervised, locked_down = Policy.read_only(), Policy.supervised(), Policy.locked_down(permissions=["crm"])
    assert [read_only.permits(made) for made in (harmless, files, dear, small)] == [True, True, True, False]
    assert [supervised.asks(made) for made in (harmless, files, dear, small)] == [False, False, True, True]
    assert [locked_down.permits(made) for made in (harmless, files, dear, small)] == [True, True, False, False]
    assert not Policy.locked_down().permits(files) and all(map(locked_down.asks, (harmless, files, dear, small)))


@pytest.mark.parametrize(("effect", "risk"), [*zip(EFFECTS, ["low", "medium", "high", "high"], strict=True)])
def test_an_effect_has_a_risk_where_the_author_says_none(effect: str, risk: str) -> None:
    assert traits("any", effect).risk_level == risk and traits("any", effect, "critical").risk_level == "critical"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"allow_effects": "read"}, "allow_effects"),
        ({"allow_effects": ["reads"]}, "'reads'"),
        ({"approve_effects": ["write"]}, "'write'"),
        ({"max_depth": -1}, "max_depth"),
        ({"max_depth": True}, "max_depth"),
        ({"max_depth": 1.0}, "max_depth"),
        ({"deny_tools": [1]}, "deny_tools"),
        ({"max_risk": "extreme"}, "max_risk"),
        ({"approve_risk": 2}, "approve_risk"),
        ({"allow_permissions": "crm"}, "allow_permissions"),
    ],
)
def test_what_is_no_policy_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        Policy(**wrong)


@tool(effect="idempotent_write", risk="high", permissions=["crm", "crm"])
async def note(text: str) -> None: ...


@pytest.mark.parametrize(
    "wrong", [{"risk": "some"}, {"permissions": "crm"}, {"permissions": [""]}, {"permissions": [7]}, {"permissions": ["x" * 65]}]
)
def test_a_tool_with_a_risk_or_permissions_that_are_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        replace(note, **wrong)
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        ClientTool(name="pick", description="", parameters={"type": "object"}, **wrong)
    with pytest.raises(DefinitionError, match=next(iter(wrong))):
        HttpTool(name="stock", description="", url="https://erp.internal/", **wrong)


def test_an_agent_whose_policy_forbids_its_own_model_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'a:2'"):
        Agent(name="a", model="a:1", fallback_models=["a:2"], policy=Policy(allow_models=["a:1"]))
    with pytest.raises(DefinitionError, match="'a:1'"):
        Agent(name="a", model="a:1", policy=Policy(deny_models=["a:1"]))
    Agent(name="a", model=lambda ctx: "a:2", policy=Policy(allow_models=["a:1"]))


def test_the_manifest_shows_what_the_policy_asks_for() -> None:
    shown = manifest(Agent(name="a", model=ScriptedModel([]), tools=[note], policy=Policy.supervised()))
    assert [(each.needs_approval, each.risk, each.permissions) for each in shown.tools] == [("always", "high", ["crm"])]
    assert (
        shown.policy["approve_effects"] == ["idempotent_write", "non_idempotent_write", "unclassified"]
        and shown.policy["max_depth"] is None
    )
