"""Which pair for this machine: every pair with what it costs here, and the one to propose.

Contract: arithmetic on what the catalogue says and what is on disk; nothing is measured or loaded here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from specchat.pairs.catalog import Catalog, Pair
from specchat.pairs.library import Library, State
from specchat.units import GIB, format_bytes


class Fit(StrEnum):
    """Whether a pair's memory can be had."""

    FITS = "fits"
    TIGHT = "tight"  # only once other programs give memory back
    TOO_LARGE = "too large"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a pair may take, in bytes: now, and at most. `gpu`: this build of llama.cpp has a graphics card to use."""

    memory_free: int
    memory_total: int
    disk_free: int
    gpu: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A pair as a choice. `download` is None where a size is unknown, `here` what of it is on disk already."""

    pair: Pair
    download: int | None
    here: int
    ready: bool
    damaged: bool
    memory: Fit
    disk: bool

    @property
    def percent(self) -> int | None:
        """How much of the download is here; None where that is unknown."""
        if self.ready:
            return 100
        return min(99, self.here * 100 // self.download) if self.download else None


def choices(catalog: Catalog, library: Library, machine: Machine) -> tuple[Choice, ...]:
    """Every pair of the catalogue, in its order."""
    return tuple(_choice(catalog, library, machine, pair) for pair in catalog.pairs.values())


def _choice(catalog: Catalog, library: Library, machine: Machine, pair: Pair) -> Choice:
    statuses = [library.status(file) for file in catalog.needed(pair)]
    here = sum(status.bytes for status in statuses)
    download = catalog.download_bytes(pair)
    return Choice(
        pair=pair,
        download=download,
        here=here,
        ready=library.installed(pair),
        damaged=any(status.state is State.DAMAGED for status in statuses),
        memory=_memory_fit(pair, machine),
        disk=download is None or download - here <= machine.disk_free,
    )


def _memory_fit(pair: Pair, machine: Machine) -> Fit:
    if pair.memory_gib is None:
        return Fit.UNKNOWN
    need = pair.memory_gib * GIB
    if need <= machine.memory_free:
        return Fit.FITS
    return Fit.TIGHT if need <= machine.memory_total else Fit.TOO_LARGE


def proposal(of: Iterable[Choice], machine: Machine) -> Choice | None:
    """A pair that fits and whose quantisation pays on this machine.

    Without a graphics card it is the first in the catalogue of those made for a CPU; with one, the largest of
    those made for a graphics card. Where none of either fits, the largest that does.
    """
    fitting = [choice for choice in of if choice.memory is Fit.FITS and choice.disk and not choice.pair.own]
    suited = [choice for choice in fitting if choice.pair.suits == ("gpu" if machine.gpu else "cpu")]
    if suited and not machine.gpu:
        return suited[0]
    return max(suited or fitting, key=lambda choice: choice.pair.memory_gib or 0, default=None)


def why(proposed: Choice, machine: Machine) -> str:
    """A clause about why this pair is proposed; "" if it is only the largest that fits."""
    if proposed.pair.suits == "gpu" and machine.gpu:
        return "made for a graphics card"
    if proposed.pair.suits == "cpu" and not machine.gpu:
        return "made for a CPU, as no graphics card is in use here"
    return ""


MADE_FOR: Final = {"any": "CPU, GPU", "cpu": "CPU", "gpu": "GPU"}  # what a pair suits, in words
HEADINGS: Final = ("PAIR", "DOWNLOAD", "HERE", "MEMORY", "MADE FOR", "")


def figures(choice: Choice) -> tuple[str, ...]:
    """A pair's line of the table, a cell for each of HEADINGS."""
    download = "unknown" if choice.download is None else format_bytes(choice.download) if choice.download else "-"
    memory = f"{choice.pair.memory_gib:.1f} GiB" if choice.pair.memory_gib is not None else ""
    made_for = "" if choice.pair.own else MADE_FOR[choice.pair.suits]
    return choice.pair.name, download, _here(choice), memory, made_for, _fit(choice)


def _here(choice: Choice) -> str:
    if choice.ready:
        return "ready"
    if choice.damaged:
        return "damaged"
    return f"{choice.percent} %" if choice.here and choice.percent is not None else ""


def _fit(choice: Choice) -> str:
    if not choice.disk and not choice.ready:
        return "no room on the disk"
    return {Fit.FITS: "fits", Fit.TIGHT: "fits if others close", Fit.TOO_LARGE: "too large"}.get(choice.memory, "")
