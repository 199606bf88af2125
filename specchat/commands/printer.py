"""Where the parts of `ask`'s reply go: the answer to standard output, the rest to standard error.

Contract: on a terminal, text is cleaned of whatever could control it, and progress is one line that is redrawn and
gone before anything else appears; elsewhere text passes as it is and progress is left out.
"""

from __future__ import annotations

import io
import sys

import click

from specchat.engine.replies import Finished, Generated, Notice, Reading
from specchat.engine.text import Piece
from specchat.session import SessionEvent
from specchat.tui.text import Cleaner, clean
from specchat.worker.protocol import Loading


class Printer:
    """Shows one reply as it comes. `silent`: only progress and notices."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._terminal, self._error_terminal = sys.stdout.isatty(), sys.stderr.isatty()
        self._progress_shown = False
        self._last = ""  # character on standard output
        self._reasoning = False  # is what was written last
        self._thoughts, self._answer = Cleaner(), Cleaner()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character is no reason to stop

    def show(self, event: SessionEvent) -> None:
        """Show one event."""
        match event:
            case Loading(stage=stage, fraction=None):
                self._progress(stage)
            case Loading(stage=stage, fraction=float(fraction)):
                self._progress(f"{stage}: {fraction:.0%}")
            case Reading(done=done, total=total):
                self._progress(f"reading {done:,} of {total:,} tokens")
            case Notice(text=text):
                self.say(text)
            case Generated(pieces=pieces) | Finished(pieces=pieces) if not self._silent:
                for piece in pieces:
                    self._write(piece)

    def say(self, sentence: str) -> None:
        """A notice on standard error; nothing if there is no sentence."""
        if sentence:
            self._clear()
            click.echo(f"specchat: {clean(sentence)}", err=True)

    def end(self) -> None:
        """The reply is over: leave both streams at the beginning of a line."""
        self._clear()
        self._end_reasoning()
        if self._last not in ("", "\n"):
            print(flush=True)

    def _write(self, piece: Piece) -> None:
        if not piece.text:
            return
        self._clear()
        if piece.reasoning:
            if self._error_terminal:
                click.secho(self._thoughts.add(piece.text), err=True, nl=False, dim=True)
                self._reasoning = True
            return
        self._end_reasoning()
        self._last = piece.text[-1]  # first: Ctrl+C may come the moment that the text is out
        print(self._answer.add(piece.text) if self._terminal else piece.text, end="", flush=True)

    def _end_reasoning(self) -> None:
        if self._reasoning:
            click.echo("\n", err=True)
            self._reasoning = False

    def _progress(self, text: str) -> None:
        if self._error_terminal:
            # \x1b[K: what is left of a longer line goes.
            print(f"\r{clean(text)}\x1b[K", end="", file=sys.stderr, flush=True)
            self._progress_shown = True

    def _clear(self) -> None:
        if self._progress_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._progress_shown = False
