"""Names of models: `provider:model`, and the environment variables that a provider's key comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runward.agents.names import check_model_name
from runward.core.errors import DefinitionError

KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "alibaba": ("ALIBABA_API_KEY", "DASHSCOPE_API_KEY"),
    "anthropic": ("ANTHROPIC_API_KEY",),
    "azure": ("AZURE_OPENAI_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("CO_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks": ("FIREWORKS_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshotai": ("MOONSHOTAI_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openai-responses": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "together": ("TOGETHER_API_KEY",),
    "xai": ("XAI_API_KEY",),
}
"""Where a provider's key is looked for, first to last. A provider that is not listed says itself what it misses, when it is opened."""

KEYLESS_VARIABLES: Mapping[str, str] = {"openai": "OPENAI_BASE_URL", "openai-responses": "OPENAI_BASE_URL"}
"""Set, it leads to a server of one's own, which may need no key."""


def split_name(name: str) -> tuple[str, str]:
    """A model's name as provider and model. Raises `DefinitionError` where it is not `provider:model`."""
    check_model_name(name, "A model")
    provider, _, model = name.partition(":")
    return provider, model


def missing_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """The environment variable that has to be set before this model can be called; None where nothing is known to be missing."""
    provider, _ = split_name(name)
    variables = KEY_VARIABLES.get(provider, ())
    if not variables or any(environ.get(variable) for variable in variables) or environ.get(KEYLESS_VARIABLES.get(provider, "")):
        return None
    return variables[0]


def require_keys(models: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> None:
    """Refuses the start of a worker whose agents' models have no key, naming agent and variable. `models` are pairs of agent and model."""
    missing = [(agent, name, variable) for agent, name in models if (variable := missing_variable(name, environ)) is not None]
    if missing:
        lines = [f"agent {agent!r} uses {name!r}, which needs the environment variable {variable}" for agent, name, variable in missing]
        raise DefinitionError("A model's key is missing: " + "; ".join(lines) + ".", code="missing_key")
