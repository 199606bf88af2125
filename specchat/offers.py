"""Drafts to offer for a target that came without one: models on this machine, every rule of pairing checked.

Contract: nothing is loaded here (`specchat.probe` asks llama.cpp elsewhere) and nothing but headers is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from specchat import probe
from specchat.pairs import candidates, discovery
from specchat.pairs.candidates import Local
from specchat.pairs.catalog import Catalog
from specchat.pairs.library import Library


@dataclass(frozen=True, slots=True)
class Offer:
    """What was found. `drafts` are smallest first; `obstacle` says why no draft can help this target."""

    drafts: tuple[Local, ...]
    looked_at: int
    name: str  # the target's, from its header; may be empty
    obstacle: str | None


def for_target(known: Catalog, library: Library, target: Path, model_dirs: Iterable[Path] = ()) -> Offer:
    """The models here that can draft for `target`: installed, other programs', and those in `model_dirs`.

    Takes about a second and a third of one for each smaller model. Raises SpecchatError when `target` cannot be read.
    """
    found = discovery.search(discovery.places(model_dirs))
    here = candidates.local(known, library, found, target) if target.is_file() else []
    answer = probe.drafts(target, [model.path for model in here])
    fitting = tuple(model for model in here if model.path in answer.fitting)
    return Offer(fitting, len(here), answer.name, answer.obstacle)
