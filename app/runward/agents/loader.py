"""Finds a process's agents: `RUNWARD_AGENTS` as modules, `.py` files and `.yaml` files, or the demo agents."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from runward.agents.agent import Agent
from runward.agents.complaints import complaint_of
from runward.agents.registry import Registry
from runward.core.errors import DefinitionError
from runward.core.ids import digest
from runward.core.text import shorten

DEMO = "runward.agents.demo"


def load(entries: str | None, *, directory: Path | None = None) -> Registry:
    """The agents that `RUNWARD_AGENTS` names, comma-separated; the demo agents for None and for nothing but blanks.

    The working directory, or `directory`, is put on the import path; paths are taken from it. Raises DefinitionError, naming the entry
    and the reason, for everything that has to stop a start.
    """
    base = Path.cwd() if directory is None else directory
    if str(base) not in sys.path:
        sys.path.insert(0, str(base))
    named = [entry.strip() for entry in (entries or "").split(",") if entry.strip()] or [DEMO]
    agents: list[Agent] = []
    for entry in named:
        agents += [agent for agent in _entry(entry, base) if not any(agent is other for other in agents)]
    return Registry(agents)


def _entry(entry: str, base: Path) -> Sequence[Agent]:
    of = f"RUNWARD_AGENTS: {entry}"
    if entry.endswith((".yaml", ".yml")):
        from runward.agents.yaml_agents import read_agents

        return read_agents(_existing(base / entry, of), of=of)
    module = _file_module(_existing(base / entry, of), of) if entry.endswith(".py") else _module(entry, of)
    return _agents_of(module, of)


def _existing(path: Path, of: str) -> Path:
    if not path.is_file():
        raise DefinitionError(f"{of}: there is no such file.")
    return path.resolve()


def _module(name: str, of: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(error, of) from error


def _file_module(path: Path, of: str) -> ModuleType:
    """A file as a module, under a name of its own: the same file named twice is the same module."""
    name = f"runward_agents_{digest(str(path))[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{of}: it cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _broken(error, of) from error
    return module


def _broken(error: BaseException, of: str) -> DefinitionError:
    """Why an import failed, and where: for whoever starts the service."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames and frames[-1].filename != __file__ else ""
    if isinstance(error, SyntaxError):
        where = f" (line {error.lineno} of {Path(error.filename or '').name})"
    reason = error.detail if isinstance(error, DefinitionError) else f"{type(error).__name__}: {_said(error)}"
    return DefinitionError(f"{of}: it cannot be imported{where}: {shorten(reason, 500)}")


def _said(error: BaseException) -> str:
    """An error's message, without the values that Pydantic would show: settings read at import hold secrets."""
    if isinstance(error, ValidationError):
        return complaint_of(error, whole="the whole")
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:  # noqa: BLE001 - an error that cannot even be printed still has to be reported
        return "no message"


def _agents_of(module: ModuleType, of: str) -> Sequence[Agent]:
    """`AGENTS` where the module has it, else every agent bound at module level, imported ones too."""
    if hasattr(module, "AGENTS"):
        listed: Any = module.AGENTS
        if not isinstance(listed, Sequence) or not all(isinstance(agent, Agent) for agent in listed):
            raise DefinitionError(f"{of}: AGENTS must be a list of agents.")
        return listed
    found = [value for value in vars(module).values() if isinstance(value, Agent)]
    if not found:
        raise DefinitionError(f"{of}: it defines no agent, neither in AGENTS nor at module level.")
    return found
