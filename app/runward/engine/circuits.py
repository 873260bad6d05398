"""Circuit breakers: a model that keeps failing is left alone for a while, by all runs of this process (R30)."""

from __future__ import annotations

import asyncio
from collections import deque

from runward.core.runs.answers import CIRCUIT_OPEN
from runward.engine.services import CircuitSettings
from runward.ports.clock import Clock
from runward.ports.models import ModelCallError, ModelClient
from runward.ports.telemetry import Telemetry

SOON_SECONDS = 1.0
"""Who comes so shortly before the probe waits for it: it is not worth an attempt."""


class Circuits:
    """One circuit for each model that this process has asked."""

    def __init__(self, settings: CircuitSettings, clock: Clock, telemetry: Telemetry) -> None:
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._circuits: dict[int, tuple[ModelClient, Circuit]] = {}

    def of(self, client: ModelClient) -> Circuit:
        """The circuit of a client, of which a process has one per model; two scripts of one name are two models."""
        if id(client) not in self._circuits:
            self._circuits[id(client)] = (client, Circuit(client.name, self._settings, self._clock, self._telemetry))
        return self._circuits[id(client)][1]


class Circuit:
    """The circuit of one model.

    Closed, calls go through. So many failures that may pass, within the window and without a whole answer in between, open it: until
    `open_seconds` later no call goes through. Then one does, the probe: the first piece of its answer closes the circuit, its failure opens
    it anew. Of calls that were let through earlier only an answer counts meanwhile.
    """

    def __init__(self, model: str, settings: CircuitSettings, clock: Clock, telemetry: Telemetry) -> None:
        self._model = model
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._failures: deque[float] = deque(maxlen=max(1, settings.failures))
        self._open_until: float | None = None
        self._probe: asyncio.Event | None = None

    @property
    def left(self) -> float:
        """How many seconds it is until the model is tried; 0 for now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - self._clock.monotonic())

    async def admitted(self, *, waits: bool) -> Passage:
        """Lets a call through. Raises ModelCallError where the circuit is open, with the time until it is tried.

        With `waits` a call that comes while the probe is under way, or shortly before, waits for it; without, it is refused: its run has
        another model to ask.
        """
        while self._open_until is not None:
            left = self.left
            if left > (SOON_SECONDS if waits else 0) or (self._probe is not None and not waits):
                raise self._refusal(left)
            if left > 0:
                await self._clock.sleep(left)
            elif self._probe is not None:
                await self._probe.wait()
            else:
                self._probe = asyncio.Event()
                return Passage(self, self._probe)
        return Passage(self, None)

    def answers(self, *, whole: bool) -> None:
        """Something of an answer came, or all of it."""
        if whole or self._open_until is not None:
            self._failures.clear()
        if self._open_until is not None:
            self._open_until = None
            self._telemetry.event("model_circuit_closed", model=self._model)
        self._probed()

    def fails(self, kind: str, probe: asyncio.Event | None) -> None:
        """A call failed for a cause that may pass."""
        now = self._clock.monotonic()
        if self._open_until is not None:
            if probe is not None and probe is self._probe:
                self._open(now, kind)
            return
        self._failures.append(now)
        if 0 < self._settings.failures <= len(self._failures) and now - self._failures[0] <= self._settings.window_seconds:
            self._open(now, kind)

    def ends(self, probe: asyncio.Event) -> None:
        """The probe is over without a word of its model: the next call is one."""
        if probe is self._probe:
            self._probed()

    def _open(self, now: float, kind: str) -> None:
        self._open_until = now + self._settings.open_seconds
        self._telemetry.event("model_circuit_opened", model=self._model, kind=kind, seconds=self._settings.open_seconds)
        self._probed()

    def _probed(self) -> None:
        if self._probe is not None:
            self._probe.set()
            self._probe = None

    def _refusal(self, left: float) -> ModelCallError:
        message = f"The model {self._model} kept failing, and is not asked for the moment."
        return ModelCallError(CIRCUIT_OPEN, message, transient=True, billed=False, retry_after=left)


class Passage:
    """A call that its circuit let through. It tells what becomes of it; that it is `over` is told in any case."""

    def __init__(self, circuit: Circuit, probe: asyncio.Event | None) -> None:
        self._circuit = circuit
        self._probe = probe

    def begins(self) -> None:
        """A piece of the answer is here: enough for a probe."""
        if self._probe is not None:
            self._probe = None
            self._circuit.answers(whole=False)

    def answered(self) -> None:
        """The whole answer is here."""
        self._circuit.answers(whole=True)

    def failed(self, error: ModelCallError, *, waits: bool) -> None:
        """The call failed. What will not pass says nothing of the model. Who waits for this model has no use for an attempt before its
        circuit lets one through."""
        if error.transient:
            self._circuit.fails(error.kind, self._probe)
            if waits and self._circuit.left:
                error.retry_after = max(error.retry_after or 0, self._circuit.left)

    def over(self) -> None:
        """Nothing more comes of the call."""
        if self._probe is not None:
            self._circuit.ends(self._probe)
            self._probe = None
