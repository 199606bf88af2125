"""Earlier prompts, walked through with Up and Down.

Contract: pure; what was being written when the walk began comes back at its end.
"""

from __future__ import annotations

from collections.abc import Iterable


class Recall:
    """A walk through `prompts` (the oldest first)."""

    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._at = len(self._prompts)
        self._unsent = ""

    def add(self, prompt: str) -> None:
        """Remember a sent prompt, once if it repeats the last one, and end the walk."""
        if not self._prompts or self._prompts[-1] != prompt:
            self._prompts.append(prompt)
        self._at = len(self._prompts)

    def refill(self, prompts: Iterable[str]) -> None:
        """Walk through other prompts from now on."""
        self._prompts = list(prompts)
        self._at = len(self._prompts)

    def step(self, by: int, current: str) -> str | None:
        """The prompt `by` steps on (-1 is older), None at either end; `current` is what the box holds."""
        at = self._at + by
        if not 0 <= at <= len(self._prompts):
            return None
        if self._at == len(self._prompts):
            self._unsent = current
        self._at = at
        return self._unsent if at == len(self._prompts) else self._prompts[at]
