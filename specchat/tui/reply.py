"""A reply as the screen knows it, folded from the session's events.

Contract: `Reply.add` is the only way it changes; folding the same events gives the same reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.engine.chat import Finished, Generated, Notice, Piece, Reading
from specchat.engine.stats import Figures
from specchat.session import SessionEvent
from specchat.tui.text import clean
from specchat.worker.protocol import Loading


@dataclass(slots=True)
class Reply:
    """What came so far. Text is clean for a terminal (`tui.text`)."""

    text: str = ""
    reasoning: str = ""
    pieces: list[Piece] = field(default_factory=list)  # as they came, with their origins
    figures: Figures = field(default_factory=Figures)
    notices: list[str] = field(default_factory=list)
    progress: Loading | Reading | None = None  # what goes on before the first token
    drafters: tuple[str, ...] = ()  # that were used, in order of appearance
    finish: str = ""  # Finished.reason, or "error"

    def add(self, event: SessionEvent) -> None:
        """Take in one event."""
        match event:
            case Loading() | Reading():
                self.progress = event
            case Notice():
                self.notices.append(clean(event.text))
            case Generated():
                self.progress = None
                self.figures = event.figures
                if event.round.drafter not in self.drafters:
                    self.drafters += (event.round.drafter,)
                self._extend(event.pieces)
            case Finished():
                self.progress = None
                self.figures = event.figures
                self.finish = event.reason
                self._extend(event.pieces)

    def _extend(self, pieces: tuple[Piece, ...]) -> None:
        for piece in pieces:
            self.pieces.append(piece)
            if piece.reasoning:
                self.reasoning += clean(piece.text)
            else:
                self.text += clean(piece.text)
