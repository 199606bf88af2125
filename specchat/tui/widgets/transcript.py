"""The conversation: its turns from the first to the last, following the end unless the reader scrolled up.

Contract: only the last turns are mounted (cost follows the number of widgets); older ones are mounted as the reader
comes near the top, and taken away again when the conversation grows at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from specchat.tui.actions import Place, bindings
from specchat.tui.shown import Shown
from specchat.tui.text import clean
from specchat.tui.widgets.turns import ReplyTurn, Turn, UserTurn

_BATCH: Final = 6  # turns mounted at a time
_MOST: Final = 120  # widgets that stay mounted when a turn is added: a layout takes about 0.1 ms for each
_NEAR: Final = 3  # lines from the top at which older turns are mounted


class Transcript(VerticalScroll):
    """Scrolls, mounts and selects; knows nothing of engines."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.CONVERSATION)]

    class Asked(Message):
        """A key wants something done with the selected turn: `what` is the action's name."""

        def __init__(self, what: str, turn: Turn) -> None:
            super().__init__()
            self.what, self.turn = what, turn

    class Moved(Message):
        """The end came into sight, or left it."""

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._was_at_end = True
        # At least as high as the view: an anchored scroll view puts the end of its content at its own lower edge,
        # even if that leaves the upper part empty.
        self._turns = Vertical(id="turns")
        self._older: list[Shown] = []  # not mounted, the oldest first
        self._growing = False
        self.by_origin = False

    def compose(self) -> ComposeResult:
        yield self._turns

    # ---- content

    async def show(self, turns: Iterable[Shown]) -> None:
        """These turns and nothing else, the last of them mounted."""
        everything = list(turns)
        self._older = everything[:-_BATCH]
        self._turns.remove_class("-empty")
        with self.app.batch_update():
            await self._turns.remove_children()
            await self._turns.mount_all([self._widget(shown) for shown in everything[-_BATCH:]])
        self.follow()
        self.call_after_refresh(self._fill)

    def _widget(self, shown: Shown) -> Turn:
        return UserTurn(shown) if shown.role == "user" else ReplyTurn(shown, by_origin=self.by_origin)

    async def add(self, *turns: Widget) -> None:
        """Put turns at the end and follow it."""
        await self._prune()
        await self._turns.mount(*turns)
        self.follow()

    async def _prune(self) -> None:
        """Take away what is above the last few turns."""
        room, mounted = _MOST, self.turns
        while mounted and (room := room - len(mounted[-1].query("*"))) > 0:
            mounted.pop()
        surplus = mounted[: len(self.turns) - 2]
        self._older += [turn.shown for turn in surplus]
        children = list(self._turns.children)
        if surplus:
            end = children.index(surplus[-1]) + 1
            await self._turns.remove_children(children[:end])

    async def truncate(self, first: Turn) -> None:
        """Take `first` and everything after it away."""
        children = list(self._turns.children)
        for widget in children[children.index(first) :]:
            await widget.remove()

    async def add_welcome(self, welcome: Widget) -> None:
        """Show `welcome` in the middle until `begin` takes it away."""
        self._turns.add_class("-empty")
        await self._turns.mount(welcome)

    async def begin(self) -> None:
        """Take away the welcome and whatever an unsuccessful message left behind."""
        self._turns.remove_class("-empty")
        await self._turns.query("Welcome, .failure, .-unsent").remove()

    async def clear(self) -> None:
        """Take every turn away."""
        self._older = []
        await self._turns.remove_children()

    async def replace(self, old: Turn, new: Turn) -> None:
        """Put one turn in the place of another."""
        with self.app.batch_update():
            await self._turns.mount(new, after=old)
            await old.remove()

    def renumber(self, turns: Iterable[Shown]) -> None:
        """Say of each turn which version it is now; what it says is as it was."""
        numbers = {shown.id: (shown.branch, shown.branches) for shown in turns}
        for turn in self.turns:
            turn.number(turn.shown.id, *numbers.get(turn.shown.id, (turn.shown.branch, turn.shown.branches)))
        self._older = [
            replace(shown, branch=number[0], branches=number[1]) if (number := numbers.get(shown.id)) else shown
            for shown in self._older
        ]

    def identify(self, branch: Iterable[Shown]) -> None:
        """Number the turns that were not in the history when they were shown, now that `branch` is what it holds.

        A turn is known by its place and its words, as it is shown and kept in one order.
        """
        known = list(branch)
        older = len(self._older)
        self._older = [_identified(shown, kept) for shown, kept in zip(self._older, known, strict=False)]
        for turn, kept in zip(self.turns, known[older:], strict=False):
            found = _identified(turn.shown, kept)
            turn.number(found.id, found.branch, found.branches)

    async def add_notice(self, sentence: str, classes: str = "notice", follow: bool = True) -> None:
        """Put a sentence of the program's own between the turns, and go to the end unless not to `follow` it."""
        await self._turns.mount(Static(clean(sentence), markup=False, classes=f"turn {classes}"))
        if follow:
            self.follow()

    @property
    def turns(self) -> list[Turn]:
        """The mounted turns, the oldest first."""
        return [child for child in self._turns.children if isinstance(child, Turn)]

    def color_by_origin(self, on: bool) -> None:
        """Show replies by origin, those to come too."""
        self.by_origin = on
        for turn in self.query(ReplyTurn):
            turn.color_by_origin(on)

    # ---- scrolling

    def follow(self) -> None:
        """Go to the end and stay there as it grows."""
        # Asked for anew every time: once released, an anchor takes hold again only at the exact bottom.
        self.anchor()

    @property
    def at_end(self) -> bool:
        """Whether the end is in sight."""
        return self.scroll_offset.y >= self.max_scroll_y

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self.at_end is not self._was_at_end:
            self._was_at_end = self.at_end
            self.post_message(self.Moved())
        if new_value < old_value and new_value <= _NEAR:
            self._want_older()

    def _fill(self) -> None:
        """What does not fill the view cannot be scrolled, and would hide that there is more."""
        if self.max_scroll_y <= _NEAR:
            self._want_older()

    def _want_older(self) -> None:
        if self._older and not self._growing:
            self._growing = True
            self.call_later(self._mount_older)

    async def _mount_older(self) -> None:
        """Mount a batch above, and keep the lines that are in view where they are."""
        batch, self._older = self._older[-_BATCH:], self._older[:-_BATCH]
        first, height = self._turns.children[0], self._turns.size.height
        with self.app.batch_update():
            await self._turns.mount_all([self._widget(shown) for shown in batch], before=first)
        self.call_after_refresh(self._keep_view, height)

    def _keep_view(self, height: int) -> None:
        self.scroll_to(y=self.scroll_y + self._turns.size.height - height, animate=False)
        self._growing = False
        self._fill()

    def action_line_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_line_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_top(self) -> None:
        self.scroll_home(animate=False)

    def action_bottom(self) -> None:
        self.select(None)
        self.follow()

    async def action_command(self) -> None:
        await self.run_action("screen.command")

    # ---- one turn

    @property
    def selected(self) -> Turn | None:
        """The selected turn; the last one if none is."""
        marked = [turn for turn in self.turns if turn.has_class("-selected")]
        return marked[0] if marked else (self.turns[-1] if self.turns else None)

    def select(self, turn: Turn | None) -> None:
        """Mark `turn` and bring it into view."""
        for other in self.turns:
            other.set_class(other is turn, "-selected")
        if turn is not None:
            turn.scroll_visible(animate=False)

    def _step(self, by: int) -> None:
        turns = self.turns
        if not turns:
            return
        marked = [index for index, turn in enumerate(turns) if turn.has_class("-selected")]
        at = marked[0] + by if marked else len(turns) - 1
        self.select(turns[max(0, min(len(turns) - 1, at))])

    def on_blur(self) -> None:
        self.select(None)

    def action_previous_turn(self) -> None:
        self._step(-1)

    def action_next_turn(self) -> None:
        self._step(1)

    def action_unfold(self) -> None:
        turn = self.selected
        if isinstance(turn, UserTurn | ReplyTurn):
            turn.toggle()

    def _ask(self, what: str) -> None:
        if self.selected is not None:
            self.post_message(self.Asked(what, self.selected))

    def action_copy(self) -> None:
        self._ask("copy")

    def action_copy_code(self) -> None:
        self._ask("copy_code")

    def action_edit(self) -> None:
        self._ask("edit")

    def action_regenerate(self) -> None:
        self._ask("regenerate")

    def action_go_on(self) -> None:
        self._ask("go_on")

    def action_older_version(self) -> None:
        self._ask("older_version")

    def action_newer_version(self) -> None:
        self._ask("newer_version")


def _identified(shown: Shown, kept: Shown) -> Shown:
    if shown.id is None and (shown.role, shown.text) == (kept.role, kept.text):
        return replace(shown, id=kept.id, branch=kept.branch, branches=kept.branches)
    return shown


def code_blocks(markdown: str) -> Sequence[str]:
    """The fenced code blocks of a text, in order."""
    from markdown_it import MarkdownIt

    return [token.content for token in MarkdownIt("gfm-like").parse(markdown) if token.type == "fence"]
