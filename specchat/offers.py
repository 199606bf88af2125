"""What to offer here: drafts for a target that came without one, and what a pair of the catalogue may take.

Contract: nothing is loaded here (`specchat.probe` asks llama.cpp elsewhere) and nothing but headers is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from specchat import __version__, probe
from specchat.errors import SpecchatError
from specchat.memory.machine import Device, budget
from specchat.memory.machine import Machine as Memory
from specchat.pairs import candidates, discovery
from specchat.pairs import pull as pulling
from specchat.pairs.candidates import Local
from specchat.pairs.catalog import Catalog
from specchat.pairs.choosing import Machine
from specchat.pairs.library import Library
from specchat.worker import ram


@dataclass(frozen=True, slots=True)
class Offer:
    """What was found. `drafts` are smallest first; `obstacle` says why no draft can help this target."""

    drafts: tuple[Local, ...]
    looked_at: int
    name: str  # the target's, from its header; may be empty
    obstacle: str | None


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest model here that can draft for a target, if any can; `looked_at` models are smaller than it."""

    draft: Local | None
    looked_at: int


def smallest(known: Catalog, library: Library, target: Path, model_dirs: Iterable[Path] = ()) -> Smallest:
    """The first of `for_target`'s drafts. llama.cpp is asked once for the same files, and no further than that one.

    Raises SpecchatError when `target` cannot be read.
    """
    from specchat.worker import measured  # brings numpy, which the command that only lists all can do without

    here = _smaller(known, library, target, model_dirs)
    if not here:
        return Smallest(None, 0)

    def first() -> str:
        return "".join(map(str, probe.drafts(target, [model.path for model in here], first=True).fitting[:1]))

    try:
        files = [measured.identity(path) for path in (target, *(model.path for model in here))]
        path = measured.once(first, "draft for", __version__, files)
    except OSError as error:
        raise SpecchatError(f"cannot read {error.filename}: {error.strerror}") from error
    return Smallest(next((model for model in here if str(model.path) == path), None), len(here))


def for_target(known: Catalog, library: Library, target: Path, model_dirs: Iterable[Path] = ()) -> Offer:
    """The models here that can draft for `target`: installed, other programs', beside it, and those in `model_dirs`.

    Takes about a second and a third of one for each smaller model. Raises SpecchatError when `target` cannot be read.
    """
    here = _smaller(known, library, target, model_dirs)
    answer = probe.drafts(target, [model.path for model in here])
    fitting = tuple(model for model in here if model.path in answer.fitting)
    return Offer(fitting, len(here), answer.name, answer.obstacle)


def _smaller(known: Catalog, library: Library, target: Path, model_dirs: Iterable[Path]) -> list[Local]:
    if not target.is_file():
        return []
    found = [*discovery.search(discovery.places(model_dirs)), *discovery.beside(target)]
    return candidates.local(known, library, found, target)


def machine(library: Library) -> Machine:
    """What a pair may take here, less the margins that a plan leaves.

    Takes a second: llama.cpp is asked for graphics cards, in a process of its own.
    """
    cards = tuple(Device(card.name, card.description, card.free, card.total) for card in _cards())
    room = ram.available()
    empty = tuple(replace(card, free=card.total) for card in cards)
    return Machine(
        memory_free=max(budget(Memory(room.total, room.free, devices=cards)).values()),
        memory_total=max(budget(Memory(room.total, room.total, devices=empty)).values()),
        disk_free=pulling.free_space(library.models),
        gpu=bool(cards),
    )


def _cards() -> tuple[probe.Device, ...]:
    """The graphics cards in use; none where llama.cpp does not load, which `specchat doctor` explains."""
    try:
        return probe.build().gpus
    except SpecchatError:
        return ()
