"""What authors test their agents with: in this process, on the memory store, in virtual time, without ports or keys. ::

from runward.testing import TestService, make_context, replace

async with TestService([replace(support, model=ScriptedModel([…]))], resources={open_shop: fake_shop}) as service:
    run = await service.run("support", "Refund order 7")
    assert run.status == "completed"
"""

from dataclasses import replace

from runward.testing.clock import VirtualClock
from runward.testing.contexts import make_context
from runward.testing.service import TestRun, TestService

__all__ = ["TestRun", "TestService", "VirtualClock", "make_context", "replace"]
