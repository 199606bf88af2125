"""A turn as the screen shows it: from the history, or from what was just said.

Contract: a pure value; a widget can be made from it again at any time, so that only the last turns need be mounted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from specchat.engine.stats import Figures
from specchat.history import Message
from specchat.tui.journal import figures_of
from specchat.tui.reply import Reply
from specchat.tui.text import clean

ELSEWHERE: Final = "elsewhere"  # how a reply ends that another window is still writing


@dataclass(frozen=True, slots=True)
class Shown:
    """One turn. Text is clean for a terminal. `id` is its place in the history, None if it is not there."""

    role: str
    text: str
    thoughts: str = ""
    id: int | None = None
    branch: int = 1
    branches: int = 1
    figures: Figures = field(default_factory=Figures)
    finish: str = ""
    drafters: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: Message) -> Shown:
        """From the history."""
        figures, finish, drafters = figures_of(message)
        if message.state == "streaming":
            finish = ELSEWHERE
        elif message.role == "assistant" and message.state == "stopped":
            finish = finish or "cancelled"
        return cls(
            message.role,
            clean(message.content),
            clean(message.reasoning),
            message.id,
            message.branch,
            message.branches,
            figures,
            finish,
            drafters,
        )

    def after(self, reply: Reply) -> Shown:
        """This turn once `reply` has been written (on) to it."""
        return replace(
            self,
            text=self.text + clean(reply.answer),
            thoughts=self.thoughts + clean(reply.reasoning),
            figures=reply.figures,
            finish=reply.finish,
            drafters=reply.drafters,
            notices=tuple(reply.notices),
        )
