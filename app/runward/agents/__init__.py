"""What agent authors write: declarations, checked when they are made. Nothing in here runs an agent.

Everything an author needs is importable from `runward`; `docs/authoring.md` is the guide.

    agent.py        Agent and what it is made of: models.py · output.py · rules.py (Policy, Guardrails)
    tools.py        AnyTool, Tool, `@tool` · approvals.py · elsewhere.py (ClientTool, HttpTool) · templates.py · builtin.py (ask_user, …)
    signatures.py   a function as parameters and a JSON Schema · docstrings.py · schemas.py (a JSON Schema, compiled)
    contexts.py     RunContext and ToolContext, which the engine makes · content.py (Text, File) · probes.py (what a probe may answer)
    binding.py      the fingerprint of what code must provide · manifest.py · limitations.py (what this version does not run yet)
    registry.py     agents by name, version and binding · loader.py (RUNWARD_AGENTS) · yaml_agents.py · demo.py
"""
