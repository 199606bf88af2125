"""One turn of the conversation each: the user's, and the model's."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Final

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import Markdown, Static

from specchat.tui import origins
from specchat.tui.figures import progress, summary
from specchat.tui.reply import Reply
from specchat.tui.shown import Shown
from specchat.tui.text import as_sentence, clean
from specchat.tui.widgets.status import StatusLine
from specchat.tui.widgets.thoughts import Thoughts, hold_still
from specchat.tui.wrapping import wrapped

_FOLDED: Final = 14  # lines of a user's turn, as they are shown, that stand there without opening it


def _parser() -> MarkdownIt:
    # With "html" on, Textual's Markdown drops what looks like a tag: <think>, List<int>.
    return MarkdownIt("gfm-like", {"html": False})


class Turn(Vertical):
    """What both have in common. `shown` is what the widget can be made from again."""

    def __init__(self, shown: Shown) -> None:
        super().__init__(classes="turn")
        self.shown = shown

    def number(self, id: int | None, branch: int, branches: int) -> None:
        """Say where in the history it is."""
        self.shown = replace(self.shown, id=id, branch=branch, branches=branches)
        self._show_number()

    @property
    def said(self) -> str:
        """Its text so far."""
        return self.shown.text

    def _show_number(self) -> None:
        raise NotImplementedError

    def _versions(self) -> str:
        """Which of several versions this is."""
        return f"version {self.shown.branch} of {self.shown.branches}" if self.shown.branches > 1 else ""


class _Folding(Widget):
    """A text; of one that takes many lines at this width the first, and how many more there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self._aside, self._open = text, "", False
        self._made: tuple[int, Content] | None = None  # for which width

    def show(self, aside: str) -> None:
        """Say `aside` under it."""
        self._aside = aside
        self._make_anew()

    def toggle(self) -> None:
        """Open or fold."""
        self._open = not self._open
        self._make_anew()

    def _make_anew(self) -> None:
        self._made = None
        self.refresh(layout=True)

    def get_content_height(self, _container: Size, _viewport: Size, width: int) -> int:
        return self._content(width).get_height({}, width) if width else 0

    def render(self) -> Content:
        return self._content(self.content_size.width)

    def _content(self, width: int) -> Content:
        if self._made is None or self._made[0] != width:
            self._made = width, self._make(width)
        return self._made[1]

    def _make(self, width: int) -> Content:
        text, hidden = self._text, 0
        if not self._open and width:
            lines = wrapped(text, width)
            head = list(islice(lines, _FOLDED))
            if (rest := sum(1 for _ in lines)) > 0:
                text, hidden = "".join(head[: _FOLDED - 2]).rstrip(), rest + 2
        below = " · ".join(filter(None, (f"▸ {hidden:,} more lines" if hidden else "", self._aside)))
        return Content.assemble(text, *(("\n", (below, "$foreground 45%")) if below else ()))


class UserTurn(Turn):
    """What the user said, as it was typed; a long text is folded."""

    def __init__(self, shown: Shown) -> None:
        super().__init__(shown)
        self._body: Final = _Folding(shown.text)

    def compose(self) -> ComposeResult:
        yield self._body

    def on_mount(self) -> None:
        self._show_number()

    def _show_number(self) -> None:
        self._body.show(aside=self._versions())

    def toggle(self) -> None:
        """Open or fold."""
        hold_still(self)
        self._body.toggle()

    def on_click(self) -> None:
        self.toggle()


class ReplyTurn(Turn):
    """What the model says: progress until text comes, its thoughts folded, the text as Markdown, a line of figures."""

    def __init__(self, shown: Shown | None = None, *, by_origin: bool = False) -> None:
        """`shown`: a reply that is there already; None: one that is about to be written."""
        super().__init__(shown or Shown("assistant", ""))
        self._finished = shown is not None
        self._by_origin = by_origin
        self.reply: Reply | None = None  # known for replies of this run only
        self._body: Final = Markdown(shown.text if shown else None, parser_factory=_parser, open_links=False)
        self._thoughts: Final = Thoughts(shown.thoughts if shown else "")
        self._waiting: Final = StatusLine(classes="waiting")
        self._origins: Final = Static(classes="origins")
        self._summary: Final = StatusLine(classes="summary")
        self._written = 0  # characters that the Markdown has had as a stream
        self._earlier = Content()  # by origin: what it said before it was written on

    def compose(self) -> ComposeResult:
        yield self._waiting
        yield self._thoughts
        yield self._body
        yield self._origins
        yield self._summary

    def on_mount(self) -> None:
        self._waiting.display = not self._finished
        self._summary.display = False
        self._show_body()
        if self._finished:
            self._show_summary()

    @property
    def said(self) -> str:
        return self.shown.text + (self.reply.text if self.reply is not None and not self._finished else "")

    def reopen(self) -> None:
        """More is about to be written to it; what ended it is past."""
        self.query(".failure").remove()
        known = self._by_origins() if self.reply is not None else origins.unknown(self.shown.text)
        self._earlier, self.reply = known, None
        self._finished = False
        self._written = 0
        self._summary.display = False
        self._show_body()

    async def update_from(self, reply: Reply) -> None:
        """Show what `reply` has come to; awaits the Markdown so that updates cannot pile up."""
        self.reply = reply
        begun = bool(reply.text or self.shown.text)
        self._waiting.display = not begun
        if reply.progress is not None:
            self._waiting.show(progress(reply.progress))
        elif not begun:
            self._waiting.show(())
        if reply.thoughts:
            self._thoughts.show(self.shown.thoughts + reply.thoughts, over=begun)
        await self._stream(self.said)
        if self._by_origin:
            self._origins.update(self._by_origins())

    async def _stream(self, text: str) -> None:
        """Have the Markdown grow to `text`."""
        fresh, begun = text[self._written :], self._written > 0
        if not fresh:
            return
        self._written = len(text)
        with self.app.batch_update():
            if not begun:
                # After an `update` Textual takes the last line alone for the last block, and puts what an `append`
                # adds to it in that block's place: of a reply that is written on, all before is streamed once more.
                await self._body.update("")
            await self._body.append(fresh)

    async def finish(self, reply: Reply) -> None:
        """Show the reply's final form. Streamed Markdown can differ from the whole parsed at once: parse the whole."""
        self.reply = reply
        self.shown = self.shown.after(reply)
        self._finished = True
        self._waiting.display = False
        self._thoughts.show(self.shown.thoughts, over=True)
        await self._body.update(self.shown.text)
        self._show_body()
        for notice in self.shown.notices:
            await self.mount(Static(clean(as_sentence(notice)), markup=False, classes="notice"), before=self._summary)
        self._show_summary()

    def _show_number(self) -> None:
        if self._finished:
            self._show_summary()

    def _show_summary(self) -> None:
        shown = self.shown
        if shown.figures.passes or shown.finish or shown.branches > 1:
            refused = shown.finish == "error" and not (shown.text or shown.thoughts)
            finish = "refused" if refused else shown.finish
            self._summary.show(summary(shown.figures, finish, shown.drafters, self._versions()))
            self._summary.display = True

    def color_by_origin(self, on: bool) -> None:
        """Show the text by origin, where it is known; else as Markdown."""
        self._by_origin = on
        self._show_body()

    def _show_body(self) -> None:
        known = self.reply is not None and bool(self.reply.pieces)
        by_origin = self._by_origin and (known or not self._finished)
        self._origins.display = by_origin
        self._body.display = not by_origin and bool(self.shown.text or not self._finished)
        if by_origin:
            self._origins.update(self._by_origins())

    def _by_origins(self) -> Content:
        return self._earlier + origins.coloured(self.reply.pieces if self.reply is not None else ())

    def toggle(self) -> None:
        """Open or close the thoughts."""
        self._thoughts.toggle()

    async def fail(self, sentence: str) -> None:
        """Add what went wrong."""
        await self.mount(Static(Content(clean(sentence)), classes="failure"))
