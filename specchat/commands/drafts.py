"""A draft model for a target that was named without one: its pair's own, or the smallest one here that can.

Contract: nothing is loaded, and only headers are read. What was found is used where the user said so (`-md auto`) and
otherwise only told; whether memory holds it is the plan's business, as with every draft.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from specchat import offers
from specchat.commands import console
from specchat.engine.policy import Mode
from specchat.errors import SpecchatError
from specchat.offers import Smallest
from specchat.pairs.catalog import Catalog, Pair
from specchat.pairs.library import Library, Step
from specchat.session import Launch
from specchat.units import format_bytes

AUTO: Final = Path("auto")  # in place of a draft's path


def pair_of(known: Catalog, library: Library, target: Path) -> Pair | None:
    """The installed pair that has this file as its target, and a draft."""
    of_it = (
        pair
        for pair in known.pairs.values()
        if pair.draft is not None
        and library.path(pair.target).exists()
        and library.path(pair.target).samefile(target)
        and library.installed(pair)
    )
    return next(of_it, None)


def automatic(known: Catalog, library: Library, target: Path, model_dirs: Sequence[Path]) -> tuple[Path | None, str]:
    """The smallest model here that can draft for `target`, and what to say of it. Raises SpecchatError."""
    found = _search(known, library, target, model_dirs)
    if found.draft is None:
        return None, _none(target, found)
    return found.draft.path, f"{found.draft.name} drafts for {target.name}: the smallest model here that can"


def offered(launch: Launch, known: Catalog, library: Library, model_dirs: Sequence[Path]) -> Launch:
    """The same launch, which tells what could be its draft where it has none and speculation is wished for."""
    if launch.draft is not None or launch.remark or launch.settings.speculation.mode not in (Mode.AUTO, Mode.DRAFT):
        return launch
    try:
        found = _search(known, library, launch.target, model_dirs)
    except SpecchatError:
        return launch  # a target that cannot be read: loading it will say why
    if found.draft is None:
        return replace(launch, remark=_none(launch.target, found) if found.looked_at else "")
    draft = found.draft
    what = f"{draft.name} ({format_bytes(draft.bytes)}) is here and can draft for {launch.target.name}"
    return replace(launch, remark=f"{what}: add -md auto to use it")


def _none(target: Path, found: Smallest) -> str:
    looked = f" ({found.looked_at} looked at)" if found.looked_at else ""
    return f"no smaller model here can draft for {target.name}{looked}: proposals come from n-gram look-up"


def _search(known: Catalog, library: Library, target: Path, model_dirs: Sequence[Path]) -> Smallest:
    found: list[Smallest] = []

    def steps() -> Iterator[Step]:
        yield Step(f"looking for a draft model for {target.name}")
        found.append(offers.smallest(known, library, target, model_dirs))

    if sys.stderr.isatty():
        console.follow(steps())
    else:
        list(steps())
    return found[0]
