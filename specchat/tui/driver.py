"""Textual's terminal driver, made to stand what terminals do to it.

Contract: nothing that is pasted is taken for a key. A terminal that goes away (its window closed, the connection lost)
ends the application as SIGHUP does, even where that signal is not sent, and never blocks it. Bytes that are no UTF-8
become the replacement character.

Written against Textual 8.2: `run_input_thread`, `_debug`, `_file` and what speaks of the mouse are the driver's own
business there. Its parser looks for escape sequences inside a paste and sends those it does not know as keys, the
Ctrl+Q or Enter after them too; its thread for output ends at the first error, and the next writes wait for it for
ever.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any, Final, cast

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

from specchat.escapes import unfinished, without_sequences

_ESCAPE: Final = "\x1b"
_LOOK: Final = 0.1  # seconds between two looks at whether to end, and for a lone Esc


class Pastes:
    """Takes the escape sequences out of pasted text, wherever the reads that it comes in begin and end."""

    def __init__(self) -> None:
        self._pasting = False
        self._seen = ""  # outside a paste: the last characters; inside: a sequence that may go on, its end's too

    def disarm(self, data: str) -> str:
        """`data` without escape characters in pastes; what may become a sequence there is kept back until it is one."""
        passed = []
        while data:
            text, data = self._inside(data) if self._pasting else self._outside(data)
            passed.append(text)
        return "".join(passed)

    def _outside(self, data: str) -> tuple[str, str]:
        """What can be passed on, and what is to be looked at yet."""
        keys, begun, text = (self._seen + data).partition(BRACKETED_PASTE_START)
        self._seen = "" if begun else keys[1 - len(BRACKETED_PASTE_START) :]
        self._pasting = bool(begun)
        return data.removesuffix(text), text

    def _inside(self, data: str) -> tuple[str, str]:
        text, ended, keys = (self._seen + data).partition(BRACKETED_PASTE_END)
        self._pasting = not ended
        whole = len(text) if ended else unfinished(text)
        self._seen = text[whole:]
        return without_sequences(text[:whole]).replace(_ESCAPE, "") + ended, keys


class _Output:
    """A file that may go away: what can no longer be written is dropped."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """See the module."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._mouse_at_first = self._mouse
        self._file = cast(Any, _Output(cast(IO[str], self._file)))

    @property
    def has_mouse(self) -> bool:
        """Whether the terminal reports the mouse."""
        return self._mouse

    def grab_mouse(self, on: bool | None) -> None:
        """Have the mouse reported, or leave it to the terminal; None: as at the beginning."""
        on = self._mouse_at_first if on is None else on
        if on is self._mouse:
            return
        if not on:
            self._disable_mouse_support()
        self._mouse = on
        if on:
            self._enable_mouse_support()
            if self._mouse_pixels:  # Textual has been told once that this terminal can
                self._enable_mouse_pixels()

    def run_input_thread(self) -> None:
        """Read what is typed until the application ends or the terminal is gone."""
        parser, pastes = XTermParser(self._debug), Pastes()
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_LOOK):
                    data = self._read()
                    if not data:
                        os.kill(os.getpid(), signal.SIGHUP)
                        return
                    self._pass_on(parser, pastes.disarm(decode(data)))
                self._process(parser.tick())

    def _read(self) -> bytes:
        with suppress(OSError):
            return os.read(self.fileno, 4096)
        return b""

    def _pass_on(self, parser: XTermParser, text: str) -> None:
        if text:  # "" would be the end of everything to the parser
            self._process(parser.feed(text))

    def _process(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.process_message(message)
