"""What RAM may be taken now, and which pair would fit, for somebody whose models do not."""

from __future__ import annotations

from specchat.memory.machine import RAM, Machine, budget
from specchat.pairs import catalog, choosing
from specchat.pairs.choosing import Choice, Fit
from specchat.pairs.library import Library
from specchat.pairs.pull import free_space
from specchat.worker import ram


def usable(room: ram.Room, limit: int | None) -> int:
    """How many bytes of RAM loading would take at most: what is free less the margin that stays so, or the limit."""
    return budget(Machine(room.total, room.free), limit)[RAM]


def suggestion(limit: int | None = None) -> str:
    """The largest pair that the RAM left now holds: one that is here, or else one to pull."""
    free = usable(ram.available(), limit)
    known, library = catalog.load(), Library.default()
    here = choosing.Machine(free, free, free_space(library.models), gpu=False)
    fit = [choice for choice in choosing.choices(known, library, here) if choice.memory is Fit.FITS]
    ready = [choice for choice in fit if choice.ready]
    best = max(ready or [choice for choice in fit if choice.disk], key=_size, default=None)
    if best is None:
        return "no pair of the catalogue would fit"
    name = best.pair.name
    return f"{name} is here and would fit: specchat {name}" if ready else f"{name} would fit: specchat pull {name}"


def _size(choice: Choice) -> float:
    return choice.pair.memory_gib or 0.0
