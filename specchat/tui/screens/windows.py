"""What other windows do with the conversation that is on the screen.

Contract: it is noticed within seconds, announced once, and shown on request only: what is said here meanwhile stands on
the branch that is on the screen. A reply that another window is writing at its end is followed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from specchat.errors import SpecchatError
from specchat.tui.screens.turns import TurnActions
from specchat.tui.shown import ELSEWHERE, Shown
from specchat.tui.widgets.turns import ReplyTurn

LOOK: Final = 2.0  # seconds between two looks; one takes about 20 µs while nothing happens


class OtherWindows(TurnActions):
    """The part of the chat screen that looks at what other windows do."""

    async def look(self) -> None:
        """Notice what another window has written."""
        with suppress(SpecchatError):  # whoever does something will hear of it
            if self.journal.has_changed():
                known = self.journal.elsewhere
                if self.journal.look():
                    await self.announce(known)
                await self._follow()

    async def announce(self, known: int | None) -> None:
        """Say that another window added something, and how to get there; not again if some of it was `known`."""
        self.transcript.renumber(map(Shown.of, self.journal.store.path(self.journal.leaf)))
        if known is not None:
            return
        sentence = f"Another window went on with this conversation: {self.key('elsewhere')} shows what it added."
        await self.transcript.add_notice(sentence, follow=self.transcript.at_end)
        self.show_state()

    async def _follow(self) -> None:
        """Show how far the reply is that another window writes at the end of this conversation."""
        last = self.transcript.turns[-1] if self.transcript.turns else None
        if self.busy or last is None or last.shown.finish != ELSEWHERE or last.shown.id is None:
            return
        now = Shown.of(self.journal.store.message(last.shown.id))
        if now != last.shown:
            path = self.journal.show(self.journal.leaf)
            await self.transcript.replace(last, ReplyTurn(now, by_origin=self.transcript.by_origin))
            self._figures_of(path)
            self.show_state()

    async def action_elsewhere(self) -> None:
        added = self.journal.elsewhere
        if added is None:
            self.note("No other window has added anything here.")
        elif self.busy:
            self.say_busy()
        else:
            await self.show_branch(self.journal.store.switch(added).leaf)
            self.journal.elsewhere = None
            self.show_state()
