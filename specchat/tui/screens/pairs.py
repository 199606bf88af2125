"""The pairs that can be fetched, as `specchat pull` lists them; answers with the name of the one to fetch."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from specchat import locations, offers
from specchat.errors import SpecchatError
from specchat.pairs import catalog, choosing
from specchat.pairs.choosing import Choice, Machine
from specchat.pairs.library import Library
from specchat.tui.actions import Place, bindings
from specchat.tui.text import as_sentence, clean
from specchat.units import format_bytes

_DIM: Final = "$foreground 60%"


class PairsScreen(ModalScreen[str | None]):
    """Enter fetches the highlighted pair, Esc leaves."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Place.PAIRS)]
    AUTO_FOCUS = "OptionList"

    def __init__(self) -> None:
        super().__init__()
        self._choices: tuple[Choice, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(id="catalogue") as box:
            box.border_title = Content("Pairs to fetch")
            box.border_subtitle = Content("Enter fetches, Esc closes")
            yield OptionList(markup=False)
            yield Static("Looking at this machine…", id="proposal", markup=False)

    def on_mount(self) -> None:
        self.run_worker(self._fill(), exit_on_error=False)

    async def _fill(self) -> None:
        said = self.query_one("#proposal", Static)
        try:
            machine, self._choices = await asyncio.to_thread(_look)
        except (SpecchatError, OSError) as error:
            said.update(clean(as_sentence(error)))
            return
        proposed = choosing.proposal(self._choices, machine)
        options = self.query_one(OptionList)
        options.add_options(Option(line) for line in _lines(self._choices, proposed))
        options.highlighted = self._choices.index(proposed) if proposed is not None else 0
        free = f"{format_bytes(machine.disk_free)} free in {locations.tilde(Library.default().models)}."
        said.update(f"{_proposal(proposed, machine)} {free}")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].pair.name)

    def action_close_pairs(self) -> None:
        self.dismiss(None)


def _look() -> tuple[Machine, tuple[Choice, ...]]:
    library = Library.default()
    machine = offers.machine(library)
    return machine, choosing.choices(catalog.load(), library, machine)


def _proposal(proposed: Choice | None, machine: Machine) -> str:
    if proposed is None:
        return "No pair fits this machine's memory and disk."
    why = choosing.why(proposed, machine)
    return f"Proposed for this machine: {proposed.pair.name}{f', {why}' if why else ''}."


def _lines(choices: tuple[Choice, ...], proposed: Choice | None) -> list[Content]:
    """Two lines a pair: its figures in columns, and what it is for."""
    rows = [choosing.figures(choice) for choice in choices]
    widths = [max(map(len, column), default=0) for column in zip(*rows, strict=True)]
    lines = []
    for choice, (name, *cells, made_for, fit) in zip(choices, rows, strict=True):
        padded = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:-2], strict=True))
        suits = f" · made for {made_for}" if made_for else ""
        licence = f" ({choice.pair.licence})" if choice.pair.licence_notice else ""
        lines.append(
            Content.assemble(
                ("● " if choice is proposed else "  ", "$text-primary"),
                (name.ljust(widths[0]), "bold" if choice is proposed else "$foreground"),
                (f"  {padded}  {fit}\n", "$foreground"),
                (f"  {clean(choice.pair.description + licence + suits)}", _DIM),
            )
        )
    return lines
