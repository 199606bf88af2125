"""A reply as the screen knows it, folded from the session's events.

Contract: `Reply.add` is the only way it changes; folding the same events gives the same reply.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from specchat.engine.replies import Generated, Reading
from specchat.engine.rounds import Round
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.session import Reply as SessionReply
from specchat.session import SessionEvent
from specchat.tui.text import Cleaner
from specchat.worker.protocol import Loading

_RECENT: Final = 16  # rounds that decide which mode is named: rounds without a proposal come in between
_SHARE: Final = 0.25  # of them with proposals: from here on it is not called plain


class Reply(SessionReply):
    """The session's reply with what a screen adds: clean text, progress, a mode that does not flicker."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.thoughts = ""
        self.pieces: list[Piece] = []  # as they came, with their origins
        self.progress: Loading | Reading | None = None  # what goes on before the first token
        self.drafters: tuple[str, ...] = ()  # that were used, in order of appearance
        self._cleaners = Cleaner(), Cleaner()
        self._recent: deque[Round] = deque(maxlen=_RECENT)

    def add(self, event: SessionEvent) -> None:
        shown = len(self.answer), len(self.reasoning)
        super().add(event)
        self.text += self._cleaners[0].add(self.answer[shown[0] :])
        self.thoughts += self._cleaners[1].add(self.reasoning[shown[1] :])
        self.progress = event if isinstance(event, Loading | Reading) else None
        if isinstance(event, Generated):
            self.pieces += event.pieces
            self._recent.append(event.round)
            if event.round.drafter not in self.drafters:
                self.drafters += (event.round.drafter,)

    @property
    def steady(self) -> Figures:
        """The figures with the mode and depth of the last few rounds instead of the latest one's."""
        drafting = [event for event in self._recent if event.proposed]
        if len(drafting) < _SHARE * len(self._recent) or not drafting:
            reason = next((event.reason for event in reversed(self._recent) if not event.proposed), "")
            return replace(self.figures, drafter="plain", depth=0, reason=reason)
        return replace(self.figures, drafter=drafting[-1].drafter, depth=drafting[-1].proposed)
