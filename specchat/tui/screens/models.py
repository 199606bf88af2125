"""The pairs that are installed, one of which can be loaded."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat.errors import SpecchatError
from specchat.pairs import catalog
from specchat.pairs.catalog import Pair
from specchat.pairs.library import Library
from specchat.tui.text import as_sentence, clean, one_line
from specchat.units import format_bytes
from specchat.worker.protocol import EngineInfo

_DIM: Final = "$foreground 60%"


class ModelsScreen(ModalScreen[str | None]):
    """Answers with the name of the pair to load, None to stay."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Close")]
    AUTO_FOCUS = "OptionList"

    def __init__(self, current: str, info: EngineInfo | None, loading: bool) -> None:
        """`current` is what was opened, `info` what is loaded of it; `loading`: that is going on."""
        super().__init__()
        self._state = "is being loaded" if loading else "is not loaded now"
        self._current, self._info = current, info
        self._trouble = ""
        self._pairs = self._installed()

    def _installed(self) -> tuple[Pair, ...]:
        try:
            return installed()
        except (SpecchatError, OSError) as error:
            self._trouble = as_sentence(error)
            return ()

    def compose(self) -> ComposeResult:
        with Vertical(id="models") as box:
            box.border_title = Content("Models")
            box.border_subtitle = Content("Enter loads, Esc closes")
            yield Static(self._loaded(), id="loaded")
            yield OptionList(*(Option(self._line(pair)) for pair in self._pairs), id="pairs", markup=False)
            yield Static(clean(self._trouble) or "/pull fetches more.", markup=False, id="more")

    def on_mount(self) -> None:
        names = [pair.name for pair in self._pairs]
        pairs = self.query_one(OptionList)
        pairs.highlighted = names.index(self._current) if self._current in names else (0 if names else None)

    def _loaded(self) -> Content:
        if self._info is None:
            return Content.assemble((one_line(self._current, 60), "bold"), (f" {self._state}.", _DIM))
        parts = [f"{one_line(self._info.target.name, 60)} ({self._info.target.description})"]
        if self._info.draft is not None:
            parts.append(f"draft: {one_line(self._info.draft.name, 60)} ({self._info.draft.description})")
        return Content.assemble(
            ("Loaded: ", _DIM), (one_line(self._current, 60), "bold"), ("\n" + "\n".join(map(clean, parts)), _DIM)
        )

    def _line(self, pair: Pair) -> Content:
        return Content.assemble(
            ("● " if pair.name == self._current else "  ", "$text-primary"),
            (pair.name, "$foreground"),
            (f"  {_size(pair)}{one_line(pair.description, 90)}", _DIM),
        )

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._pairs[event.option_index].name)


def _size(pair: Pair) -> str:
    sizes = [file.bytes for file in pair.files if file.bytes is not None]
    return f"{format_bytes(sum(sizes))} · " if len(sizes) == len(pair.files) else ""


def installed() -> tuple[Pair, ...]:
    """The pairs that can be loaded. Raises SpecchatError where the catalogue cannot be read."""
    library = Library.default()
    return tuple(pair for pair in catalog.load().pairs.values() if library.installed(pair))
