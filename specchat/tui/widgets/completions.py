"""What a slash command could become, listed above the box while it is typed."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from specchat.tui.completion import Candidate


class Completions(OptionList, can_focus=False):
    """Hidden while there is nothing to offer; the box keeps the focus and moves the highlight."""

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False)
        self._candidates: tuple[Candidate, ...] = ()

    def offer(self, candidates: tuple[Candidate, ...]) -> None:
        """List these, the first one highlighted; none hides the list."""
        if candidates == self._candidates:
            return
        self._candidates = candidates
        self.display = bool(candidates)
        self.clear_options()
        width = max((len(candidate.label) for candidate in candidates), default=0)
        self.add_options(
            Option(
                Content.assemble((candidate.label.ljust(width + 2), "$foreground"), (candidate.help, "$foreground 60%"))
            )
            for candidate in candidates
        )
        self.highlighted = 0 if candidates else None

    def move(self, by: int) -> None:
        """Move the highlight, around the ends too."""
        if self._candidates:
            self.highlighted = ((self.highlighted or 0) + by) % len(self._candidates)

    @property
    def chosen(self) -> Candidate | None:
        """The highlighted candidate, None while hidden."""
        if not self._candidates or self.highlighted is None:
            return None
        return self._candidates[self.highlighted]
