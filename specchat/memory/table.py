"""A plan in print: a table of parts, a table of what there is, and the reason for every step down.

Contract: plain lines without colour, for a terminal, a file or the screen's transcript alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from specchat.memory.machine import RAM, Machine, budget
from specchat.memory.planning import Plan
from specchat.units import format_memory


def lines(plan: Plan) -> Iterator[str]:
    """The whole plan."""
    yield headline(plan)
    yield ""
    yield from _parts(plan)
    yield ""
    yield from _room(plan)
    notes = [*plan.absent, *plan.reasons, *_others(plan.machine)]
    if notes:
        yield ""
        yield from notes


def headline(plan: Plan) -> str:
    """What was decided, in a line."""
    if not plan.rungs:
        return f"{plan.wish.target.name} does not fit"
    return f"{plan.rungs[0].name}; a context of {plan.n_ctx:,} tokens"


def _parts(plan: Plan) -> Iterator[str]:
    rows = []
    for role, of in groupby(plan.parts, key=lambda part: part.role):
        model = plan.wish.target if role == "target" else plan.wish.draft
        own = [(part.what, format_memory(part.bytes), part.device) for part in of]
        name = f"{role}: {model.name}" if model else role
        rows += [(name if i == 0 else "", *row) for i, row in enumerate(own)]
    rows.append(("together", "", format_memory(sum(part.bytes for part in plan.parts)), ""))
    yield from _columns(rows, ("MODEL", "PART", "SIZE", "WHERE"), right=2)


def _room(plan: Plan) -> Iterator[str]:
    machine, may, use = plan.machine, budget(plan.machine, plan.wish.limit), plan.use
    rows = [(RAM, machine.ram_bound, machine.ram_total, machine.ram_available)]
    rows += [(device.name, device.description, device.total, device.free) for device in machine.devices]
    cells = [
        (name, *map(format_memory, (total, free, may[name], use.get(name, 0))), note)
        for name, note, total, free in rows
    ]
    yield from _columns(cells, ("DEVICE", "TOTAL", "FREE", "MAY TAKE", "PLANNED", ""), right=4)


def _others(machine: Machine) -> Iterator[str]:
    for other in machine.others:
        yield f"another specchat engine (process {other.pid}) holds {format_memory(other.memory)}"


def _columns(rows: Sequence[Sequence[str]], headers: Sequence[str], right: int) -> Iterator[str]:
    """Aligned; the columns after the first up to number `right` end at one place if they are numbers."""
    cells = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = {i for i in range(1, right + 1) if all(row[i][:1].isdigit() for row in rows if row[i])}
    for row in cells:
        padded = [c.rjust(w) if i in numeric else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(padded).rstrip()
