"""Settings and tools of a call, as the library takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_ai.exceptions import AgentRunError, UserError
from pydantic_ai.messages import InstructionPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from runward.ports.models import ModelRequest


def settings_of(request: ModelRequest, options: dict[str, Any]) -> ModelSettings:
    """How to ask. `options` are those of the provider; the author's `provider_options` go into the request's body as they are,
    but for what the provider's own `extra_body` has made of one of them."""
    asked = request.settings
    settings: dict[str, Any] = {"max_retries": 0, **options}
    if asked.temperature is not None:
        settings["temperature"] = asked.temperature
    if asked.max_output_tokens is not None:
        settings["max_tokens"] = asked.max_output_tokens
    if asked.provider_options:
        settings["extra_body"] = {**asked.provider_options, **settings.get("extra_body", {})}
    if request.tools and request.output_mode != "tool":
        choice = request.tool_choice
        settings["tool_choice"] = choice if choice in ("auto", "none", "required") else [choice]
    return cast(ModelSettings, settings)


def fits_natively(model: Model[Any], schema: Mapping[str, Any]) -> bool:
    """Whether the library would send a schema for the provider to hold an answer to."""
    asked = ModelRequestParameters(output_mode="native", output_object=OutputObjectDefinition(json_schema=dict(schema)))
    try:
        model.prepare_request(None, asked)
    except (AgentRunError, UserError):
        return False
    return True


def parameters_of(request: ModelRequest) -> ModelRequestParameters:
    """What the model may call and has to answer with."""
    tools = [
        ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=dict(tool.parameters)) for tool in request.tools
    ]
    instructions = [InstructionPart(request.instructions)] if request.instructions else []
    if request.output_mode == "tool":
        # The library knows which models cannot be forced to call it (Claude while it thinks), and leaves those the choice; of thinking that
        # an author has asked for in the provider's own words it does not know.
        free = "thinking" in request.settings.provider_options
        return ModelRequestParameters(instruction_parts=instructions, output_mode="tool", output_tools=tools, allow_text_output=free)
    if request.output_mode != "native" or request.output_schema is None:
        return ModelRequestParameters(function_tools=tools, instruction_parts=instructions)
    output = OutputObjectDefinition(json_schema=dict(request.output_schema), name=request.output_name)
    return ModelRequestParameters(function_tools=tools, instruction_parts=instructions, output_mode="native", output_object=output)
