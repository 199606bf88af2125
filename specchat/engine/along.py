"""The draft model reads the prompt while the target already writes: nobody waits for it before the first token.

Contract: between two rounds it reads for about as long as the target's pass took, so that text comes at half of plain's
speed at least. It proposes nothing until it has read everything. While nobody wants the draft, `go_on` is not called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from specchat.engine.decoder import Decoder
from specchat.engine.drafters import STILL_READING, ModelDrafter
from specchat.engine.rounds import Round
from specchat.errors import SpecchatError


class ReadingAlong:
    """What a draft has yet to read of one prompt."""

    def __init__(self, drafter: ModelDrafter, prompt: Sequence[int]) -> None:
        self.drafter = drafter
        self._batches = drafter.read(prompt)
        self.reading = True
        self._state = STILL_READING
        self._seconds = 0.0  # spent since the last round

    def go_on(self, decoder: Decoder, seconds: float) -> None:
        """Read for about so long, a batch at least; at the end the decoder has the draft. Raises Cancelled."""
        started = time.perf_counter()
        while self.reading:
            try:
                self.reading = bool(next(self._batches, 0))
            except SpecchatError as error:
                self.reading = False
                self._state = decoder.lose(self.drafter, error)
            else:
                if not self.reading:
                    self._state = ""
                    decoder.admit(self.drafter)
            self._seconds = time.perf_counter() - started
            if self._seconds >= seconds:
                break

    def finish(self, decoder: Decoder) -> None:
        """Read everything now, at nobody's charge. Raises Cancelled."""
        self.go_on(decoder, math.inf)
        self._seconds = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next round is to be `charged`: time was spent, or there is a reason why there is no draft."""
        return bool(self._seconds or self._state)

    def charged(self, event: Round, wanted: bool) -> Round:
        """A round with the time that was spent on reading before it, and why there is no draft yet if it is wanted."""
        seconds, self._seconds = self._seconds, 0.0
        return replace(
            event,
            draft_seconds=event.draft_seconds + seconds,
            total_seconds=event.total_seconds + seconds,
            reason=(wanted and self._state) or event.reason,
        )
