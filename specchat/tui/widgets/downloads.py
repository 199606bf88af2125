"""What is being fetched, above the box: a line for each file and one for all of them."""

from __future__ import annotations

from typing import Final

from textual.content import Content
from textual.widgets import Static

from specchat.pairs.progress import Overview, Phase, Progress, amount, state
from specchat.tui.figures import bar
from specchat.tui.text import clean

_BAR: Final = 12  # columns
_FILES: Final = 4  # lines
_DIM: Final = "$foreground 60%"


class Downloads(Static):
    """Hidden while nothing is fetched."""

    def __init__(self) -> None:
        super().__init__(id="downloads", markup=False)

    def show(self, name: str, overview: Overview) -> None:
        """Bring it up to date."""
        self.display = True
        self.remove_class("-told")
        lines = [_head(name, overview)]
        files = [progress for progress in overview.files.values() if progress.phase is not Phase.DONE]
        lines += [_file(progress, overview) for progress in files[:_FILES]]
        self.update(Content("\n").join(lines))

    def tell(self, sentence: str, style: str) -> None:
        """Say how it ended; unlike a toast this covers nothing."""
        self.add_class("-told")
        self.update(Content.styled(clean(sentence), style))

    def hide(self) -> None:
        """Nothing is fetched any more."""
        self.display = False


def _head(name: str, overview: Overview) -> Content:
    said = amount(overview.done, overview.total, overview.speed(), overview.left()) if overview.plan else "asking"
    return Content.assemble(
        (f"Fetching {clean(name)}", "$text-accent"), (f"  {said}", "$foreground"), ("  /pull stop ends it", _DIM)
    )


def _file(progress: Progress, overview: Overview) -> Content:
    known = progress.total and progress.phase in (Phase.DOWNLOADING, Phase.VERIFYING, Phase.MAKING)
    drawn = bar(progress.done / progress.total if known and progress.total else 0.0, _BAR)
    return Content.assemble(drawn, (f"  {clean(progress.file)}  ", _DIM), (clean(state(progress, overview)), _DIM))
