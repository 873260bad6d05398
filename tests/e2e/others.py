"""An agent that the processes which know only this module can drive; they have no binding for any other."""

from runward import Agent, Reply, ScriptedModel

other = Agent(name="other", model=ScriptedModel([Reply(text="I know nothing of puppets.")]))
