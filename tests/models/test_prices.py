"""What models cost: by the operator's file, else by the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from runward.core.errors import DefinitionError
from runward.core.runs.ledger import Rate
from runward.models.prices import PriceTable, configured_prices

AT = 1_790_000_000_000
"""The autumn of 2026."""


@pytest.mark.parametrize("name", ["openai:gpt-5-mini", "openai-responses:gpt-5-mini"])
def test_the_table_knows_models_by_provider_and_name(name: str) -> None:
    assert PriceTable().rates(name, AT) == (Rate(input=250_000, output=2_000_000, cache_read=25_000, cache_write=250_000),)


def test_long_prompts_may_cost_more() -> None:
    base, long = PriceTable().rates("anthropic:claude-sonnet-4-5", AT) or ()
    assert (base.above, long.above) == (0, 200_000)
    assert (base.input, base.output, base.cache_read, base.cache_write) == (3_000_000, 15_000_000, 300_000, 3_750_000)
    assert long.input > base.input and long.output > base.output


def test_prices_change_with_time() -> None:
    table = PriceTable()
    before, after = (table.rates("anthropic:claude-opus-4-6", at) for at in (1_770_000_000_000, AT))
    assert before is not None and after is not None and len(before) == 2 and len(after) == 1


@pytest.mark.parametrize("name", ["scripted:script", "openai:no-such-model", "nobody:gpt-5-mini", "plain"])
def test_of_others_nobody_knows(name: str) -> None:
    assert PriceTable().rates(name, AT) is None


@pytest.mark.parametrize(
    "text",
    [
        '{"openai:gpt-5-mini": {"input": "0.1", "output": 2}, "scripted:script": {"input": 0, "output": 0.3, "cache_read": 0.0000001}}',
        "openai:gpt-5-mini: {input: 0.1, output: 2}\nscripted:script: {input: 0, output: 0.3, cache_read: 0.0000001}\n",
    ],
    ids=["json", "yaml"],
)
def test_the_operators_prices_outrank_the_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices"
    path.write_text(text)
    table = PriceTable(configured_prices(str(path)))
    assert table.rates("openai:gpt-5-mini", AT) == (Rate(input=100_000, output=2_000_000, cache_read=100_000, cache_write=100_000),)
    assert table.rates("scripted:script", AT) == (Rate(input=0, output=300_000, cache_read=1, cache_write=0),), "rounded up"
    assert table.rates("openai:gpt-5", AT) is not None
    assert configured_prices(None) == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[1]", "mapping"),
        ("{", "JSON or YAML"),
        ('{"a:b": 3}', "'a:b' needs"),
        ('{"a:b": {"input": 1}}', "'a:b' needs"),
        ('{"a:b": {"input": 1, "output": 1, "price": 1}}', "'a:b' needs"),
        ('{"a:b": {"input": -1, "output": 1}}', "`input`"),
        ('{"a:b": {"input": 1, "output": "NaN"}}', "`output`"),
        ('{"a:b": {"input": 1, "output": "lots"}}', "`output`"),
        ('{"a:b": {"input": 1, "output": true}}', "`output`"),
    ],
)
def test_a_file_that_says_no_prices_stops_the_start(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text)
    with pytest.raises(DefinitionError, match=named) as raised:
        configured_prices(str(path))
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"prices\.yaml cannot be read"):
        configured_prices(str(tmp_path / "prices.yaml"))
