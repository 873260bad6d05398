"""H3 in process: each golden run, with each of its writes lost, refused, late, or the last thing its process did.

Every promise is watched as in the simulator (`watch.py`); here the ending is known besides.
"""

from __future__ import annotations

import pytest

from tests.simulation.database import Kind
from tests.simulation.golden import Told, tell, well
from tests.simulation.stories import STORIES, Story

UNHARMED = (Kind.REFUSED, Kind.LOST, Kind.LATE, Kind.FREEZES_BEFORE, Kind.FREEZES_AFTER)
KILLS = (Kind.KILLS_BEFORE, Kind.KILLS_AFTER)
stories = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)


def check(story: Story, told: Told, what: str) -> None:
    assert not told.outcome.violations, "\n".join((f"{story.name}, {what}", *told.outcome.violations))
    endings = {story.ending} if story.exact else {story.ending, "suspended"}
    assert told.status in endings, f"{story.name}, {what}: {told.status}"
    if story.people and not story.told:
        assert told.calls == story.effects, f"{story.name}, {what}: {told.calls} calls had an effect"


@stories
def test_the_story_ends_as_it_is_told(story: Story) -> None:
    """R9: what a golden run is when nothing goes wrong."""
    told = well(story)
    assert not told.outcome.violations
    assert (told.status, told.effects) == (story.ending, story.effects)


@stories
@pytest.mark.parametrize("kind", UNHARMED, ids=lambda kind: kind.name.lower())
def test_R2a_a_write_that_gets_lost_changes_nothing(story: Story, kind: Kind) -> None:
    """Refused, answered into the void, or late: nothing happens twice and nothing is left out. A freeze may cost the lease."""
    for number in range(1, well(story).writes + 1):
        told = tell(story, {number: kind})
        check(story, told, f"write {number} {kind.name}")
        if kind in (Kind.REFUSED, Kind.LOST, Kind.LATE) and not story.hands:
            assert (told.status, told.effects) == (story.ending, story.effects), f"{story.name}, write {number} {kind.name}"


@stories
@pytest.mark.parametrize("kind", KILLS, ids=lambda kind: kind.name.lower())
def test_R40_a_process_that_dies_at_any_write_loses_nothing(story: Story, kind: Kind) -> None:
    """R12, R13, R32: the next leg goes on from what is durable."""
    for number in range(1, well(story).writes + 1):
        check(story, tell(story, {number: kind}), f"write {number} {kind.name}")


@stories
def test_R40_also_when_the_next_process_dies_while_it_recovers(story: Story) -> None:
    for number in range(1, well(story).writes + 1):
        for later in range(1, 7):
            first, second = KILLS if later % 2 else KILLS[::-1]
            check(story, tell(story, {number: first, number + later: second}), f"writes {number} and {number + later}")
