"""Errors of ours that end what was being done, and nothing else: they are said in place.

Contract: whatever a `Told` does for a key, a message, a timer or another screen's answer may raise a SpecchatError. It
is said by `tell`, and the next message is dealt with as if nothing had happened. So an action reads and writes the
history first and changes the screen afterwards. Any other exception ends the application, as Textual has it.

Written against Textual 8.2, which ends the task of a widget whose `_dispatch_message` raises. What timers and callbacks
raise comes to the application's `_handle_exception`, which answers with `tell` too (see `tui.app`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from textual.message import Message
from textual.message_pump import MessagePump

from specchat.errors import SpecchatError
from specchat.tui.text import as_sentence, clean


class Told(MessagePump):
    """A screen or widget that outlives its errors."""

    def tell(self, error: SpecchatError) -> None:
        """Say what went wrong; a toast, unless there is a better place."""
        self.app.notify(clean(as_sentence(error)), severity="error", markup=False)

    @contextmanager
    def telling(self) -> Iterator[None]:
        """What fails within is said, and what comes after it goes on."""
        try:
            yield
        except SpecchatError as error:
            self.tell(error)

    async def _dispatch_message(self, message: Message) -> None:
        with self.telling():
            await super()._dispatch_message(message)
