"""One turn of the conversation each: the user's, and the model's."""

from __future__ import annotations

from typing import Final

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from specchat.tui.figures import progress, summary
from specchat.tui.reply import Reply
from specchat.tui.text import clean
from specchat.tui.widgets.status import StatusLine


def _parser() -> MarkdownIt:
    # With "html" on, Textual's Markdown drops what looks like a tag: <think>, List<int>.
    return MarkdownIt("gfm-like", {"html": False})


class UserTurn(Static):
    """What the user said, as it was typed."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text), markup=False, classes="turn")
        self.text: Final = text


class ReplyTurn(Vertical):
    """What the model says: progress until text comes, the text as Markdown, then a quiet line of figures."""

    def __init__(self) -> None:
        super().__init__(classes="turn")
        self._body: Final = Markdown(parser_factory=_parser, open_links=False)
        self._waiting: Final = StatusLine(classes="waiting")
        self._shown = 0  # characters of the reply that the Markdown has

    def compose(self) -> ComposeResult:
        yield self._waiting
        yield self._body

    async def update_from(self, reply: Reply) -> None:
        """Show what `reply` has come to; awaits the Markdown so that updates cannot pile up."""
        self._waiting.display = not reply.text
        if reply.progress is not None:
            self._waiting.show(progress(reply.progress))
        fresh = reply.text[self._shown :]
        if fresh:
            self._shown = len(reply.text)
            await self._body.append(fresh)

    async def finish(self, reply: Reply) -> None:
        """Show the reply's final form. Streamed Markdown can differ from the whole parsed at once: parse the whole."""
        await self._waiting.remove()
        await self._body.update(reply.text)
        self._body.display = bool(reply.text)
        for notice in reply.notices:
            await self.mount(Static(clean(notice), markup=False, classes="notice"))
        if reply.figures.passes:
            line = StatusLine(classes="summary")
            await self.mount(line)
            line.show(summary(reply.figures, reply.finish, reply.drafters))

    async def fail(self, sentence: str) -> None:
        """Add what went wrong."""
        await self.mount(Static(Content(clean(sentence)), classes="failure"))
