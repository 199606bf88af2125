"""One line in place: an error in what was typed, or a short confirmation."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from specchat.tui.text import clean


class Note(Static):
    """Hidden while it has nothing to say."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id, markup=False)

    def say(self, text: str, severity: str = "information") -> None:
        """Show `text` until `hush`; `severity` is "information", "warning" or "error"."""
        self.set_classes(f"-shown -{severity}")
        self.update(clean(text))

    def explain(self, content: Content) -> None:
        """Show `content`, in its own colours."""
        self.set_classes("-shown")
        self.update(content)

    def hush(self) -> None:
        """Show nothing."""
        if self.has_class("-shown"):
            self.set_classes("")
            self.update("")
