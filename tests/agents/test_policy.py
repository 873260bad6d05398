"""R35: policies only narrow; the ready-made ones; which models may be asked."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runward import Agent, DefinitionError, Policy, ScriptedModel, tool
from runward.agents.manifest import manifest
from runward.agents.tools import EffectName

TOOLS, MODELS, EFFECTS = ("look", "note", "charge"), ("a:1", "a:2", "b:1"), get_args(EffectName)


def some(names: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), max_size=3)


policies = st.builds(
    Policy,
    allow_tools=st.none() | some(TOOLS),
    deny_tools=some(TOOLS),
    require_approval=some(TOOLS),
    allow_models=st.none() | some(MODELS),
    allow_effects=st.none() | some(EFFECTS),
    approve_effects=some(EFFECTS),
    max_depth=st.none() | st.integers(0, 3),
)


@given(policies, policies)
def test_R35_what_two_policies_make_together_is_what_each_of_them_allows(mine: Policy, theirs: Policy) -> None:
    """No more than the one and no more than the other, and not less either; the order says nothing."""
    both, other_way = mine.narrowed(theirs), theirs.narrowed(mine)
    for name in TOOLS:
        for effect in EFFECTS:
            assert both.permits(name, effect) == (mine.permits(name, effect) and theirs.permits(name, effect))
            assert both.asks(name, effect) == (mine.asks(name, effect) or theirs.asks(name, effect))
            assert (both.permits(name, effect), both.asks(name, effect)) == (other_way.permits(name, effect), other_way.asks(name, effect))
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
            (policy.permits("any", effect), policy.asks("any", effect))
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
    ],
)
def test_what_is_no_policy_is_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(DefinitionError, match=named):
        Policy(**wrong)


@tool(effect="idempotent_write")
async def note(text: str) -> None: ...


def test_an_agent_whose_policy_forbids_its_own_model_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'a:2'"):
        Agent(name="a", model="a:1", fallback_models=["a:2"], policy=Policy(allow_models=["a:1"]))
    Agent(name="a", model=lambda ctx: "a:2", policy=Policy(allow_models=["a:1"]))


def test_the_manifest_shows_what_the_policy_asks_for() -> None:
    shown = manifest(Agent(name="a", model=ScriptedModel([]), tools=[note], policy=Policy.supervised()))
    assert [each.needs_approval for each in shown.tools] == ["always"]
    assert (
        shown.policy["approve_effects"] == ["idempotent_write", "non_idempotent_write", "unclassified"]
        and shown.policy["max_depth"] is None
    )
