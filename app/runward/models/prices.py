"""What models cost: as the operator says, else as the table of `genai-prices` does, which needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from runward.core.errors import DefinitionError
from runward.core.runs.ledger import Rate, Rates

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

PROVIDERS: Final[Mapping[str, str]] = {
    "bedrock": "aws",
    "google-gla": "google",
    "google-vertex": "google",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "xai": "x-ai",
}
"""Providers that the table knows by another name."""
PICOS_PER_TOKEN: Final = 10**6
"""A dollar per million tokens, in picodollars per token."""
_NAMES: Final = ("input", "output", "cache_read", "cache_write")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PriceTable:
    """`ports.prices.Prices`. The table is read when it is first asked for a model that the operator does not price."""

    def __init__(self, configured: Mapping[str, Rates] | None = None) -> None:
        self._configured = configured or {}
        self._known: dict[str, Rates | None] = {}

    def rates(self, model: str, at: int) -> Rates | None:
        """See `ports.prices.Prices`."""
        if model in self._configured:
            return self._configured[model]
        if model not in self._known:
            rates, lasts = _looked_up(model, at)
            if not lasts:
                return rates
            self._known[model] = rates
        return self._known[model]


def configured_prices(path: str | None) -> Mapping[str, Rates]:
    """The prices of a JSON or YAML file: by model, USD per million tokens. Raises DefinitionError, naming file and model::

    {"openai:gpt-5-mini": {"input": "0.25", "output": "2.00", "cache_read": "0.025"}}
    """
    if path is None:
        return {}
    try:
        read = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        raise DefinitionError(f"RUNWARD_PRICES: {path} cannot be read as JSON or YAML.") from None
    if not isinstance(read, dict):
        raise DefinitionError(f"RUNWARD_PRICES: {path} has to be a mapping of models to prices.")
    return {str(model): _configured(path, model, prices) for model, prices in read.items()}


def _configured(path: str, model: object, prices: object) -> Rates:
    of = f"RUNWARD_PRICES: {path}: {model!r}"
    if not isinstance(prices, dict) or not {"input", "output"} <= prices.keys() <= {*_NAMES}:
        raise DefinitionError(f"{of} needs `input` and `output`, and may have `cache_read` and `cache_write`: USD per million tokens.")
    given: dict[str, Decimal] = {}
    for name, price in prices.items():
        try:
            given[name] = Decimal(str(price))
        except InvalidOperation:
            given[name] = Decimal(-1)
        if not given[name].is_finite() or given[name] < 0:
            raise DefinitionError(f"{of}: `{name}` has to be a number of at least 0.")
    return (_rate(given),)


def _looked_up(model: str, at: int) -> tuple[Rates | None, bool]:
    """What the table says of a model, and whether that holds at any time."""
    provider, _, name = model.partition(":")
    if provider == "scripted":
        return None, True
    from genai_prices.data_snapshot import get_snapshot  # a table of two megabytes, for those who need it

    try:
        _, found = get_snapshot().find_provider_model(name, None, PROVIDERS.get(provider, provider), None)
    except LookupError:
        return None, True
    return _rates(found.get_prices(_EPOCH + timedelta(milliseconds=at))), not isinstance(found.prices, list)


def _rates(price: ModelPrice) -> Rates | None:
    """One rate per length of prompt at which a price changes."""
    prices = {name: getattr(price, f"{name}_mtok", None) for name in _NAMES}
    if prices["input"] is None or prices["output"] is None:
        return None
    starts = {tier.start for each in prices.values() for tier in getattr(each, "tiers", ())}
    return tuple(
        _rate({name: _at(each, start) for name, each in prices.items() if each is not None}, above=start) for start in sorted({0, *starts})
    )


def _at(price: Any, start: int) -> Decimal:
    """A price for prompts longer than `start`."""
    if isinstance(price, Decimal):
        return price
    return Decimal(next((tier.price for tier in reversed(price.tiers) if tier.start <= start), price.base))


def _rate(prices: Mapping[str, Decimal], *, above: int = 0) -> Rate:
    """What is read from a cache or written to it costs what any input does, where nothing else is said."""
    picos = {name: int((price * PICOS_PER_TOKEN).to_integral_value(ROUND_CEILING)) for name, price in prices.items()}
    return Rate(
        input=picos["input"],
        output=picos["output"],
        cache_read=picos.get("cache_read", picos["input"]),
        cache_write=picos.get("cache_write", picos["input"]),
        above=above,
    )
