"""A draft for a target that has none: the target itself, in fewer bits and with fewer layers.

After Zhang et al. 2023, "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding",
which skips layers while drafting; here the layers are left out of a file of its own, so that llama.cpp runs it as any
other model.

A candidate is judged by two figures. Agreement: how often its likeliest token is the one that the target wrote, over
the target's own greedy replies, read in one go; at temperature 0 this is its acceptance. Cost: one of its steps on
this machine. With the target's measured passes they give the speed-up at the best depth (theory.py), and the best
predicted speed-up wins.

Contract: at most three candidate files exist at a time, all in one temporary folder that is gone afterwards; nothing
is begun that the disk has no room for. `Search.run` may be abandoned at any step: `best` is the best so far.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from specchat.engine.cache import Cache, Cancelled
from specchat.engine.calibration import calibrate_draft
from specchat.engine.costs import Costs
from specchat.engine.llama import Context
from specchat.engine.sampling import SamplingSettings
from specchat.errors import SpecchatError
from specchat.lab.prompts import Prompt
from specchat.lab.rig import Rig, load
from specchat.lab.runs import PLAIN
from specchat.lab.theory import Depth, outlook
from specchat.lab.verify import Writer
from specchat.memory.planning import Placement
from specchat.pairs import catalog, made, own
from specchat.pairs.catalog import MadeSource, ModelFile, Pair
from specchat.pairs.library import Library, Step, recipe
from specchat.units import format_bytes

# From the fastest on most machines to the smallest. Lower ones need an importance matrix, which llama.cpp's own
# programs make.
TYPES: Final = ("Q4_0", "Q3_K_S", "Q2_K")
COUNTS: Final = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24)  # layers left out, until it gets worse
PATIENCE: Final = 2  # counts without a better prediction before giving up
PAYS: Final = 1.02  # predicted speed-up from which a draft is worth its memory
MARGIN: Final = 256 * 1024**2  # bytes of disk that are always left free
SHARE: Final = 0.7  # of the time is for trying layers one by one; the rest for leaving out several
KEPT_ENDS: Final = 1  # first and last layers are never left out: they read and write the tokens


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt with the target's own greedy reply."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One draft that was made and judged."""

    kind: str  # llama.cpp's name of the quantisation
    pruned: tuple[int, ...]  # layers left out, in order
    size: int  # bytes
    agreement: float
    step: float  # seconds
    outlook: Depth  # at its best depth

    @property
    def name(self) -> str:
        match self.pruned:
            case ():
                return self.kind
            case (layer,):
                return f"{self.kind} without layer {layer}"
            case layers:
                return f"{self.kind} without {len(layers)} layers"


# ---- what candidates are judged by


def write_samples(rig: Rig, prompts: Sequence[Prompt], n: int, seconds: float, found: list[Sample]) -> Iterator[Step]:
    """The target's replies to as many prompts as the time allows (one at least). Raises Cancelled."""
    writer, end = Writer(rig, Costs()), time.monotonic() + seconds
    for i, prompt in enumerate(prompts):
        if found and time.monotonic() >= end:
            return
        yield Step(f"sample replies of the target: {prompt.name}", i, len(prompts), in_bytes=False)
        asked = rig.prompt(prompt.text)
        reply = writer.write(asked, PLAIN, SamplingSettings(temperature=0.0), n)
        found.append(Sample(tuple(asked), reply))


def agreement(cache: Cache, samples: Sequence[Sample]) -> float:
    """The share of the replies' tokens that this model finds likeliest in their place. Empties the cache."""
    agreed = total = 0
    for sample in samples:
        cache.rollback(0)
        cache.decode(sample.prompt[:-1], 0)
        rows = cache.decode([sample.prompt[-1], *sample.reply[:-1]], len(sample.reply))
        agreed += int((rows.argmax(axis=1) == np.array(sample.reply)).sum())
        total += len(sample.reply)
    cache.rollback(0)
    return agreed / max(1, total)


# ---- the search


class Search:
    """One search for a draft. `folder` is for the candidates and is emptied by the caller."""

    def __init__(self, rig: Rig, samples: Sequence[Sample], folder: Path, minutes: float) -> None:
        self._rig, self._samples, self._folder = rig, samples, folder
        self._target = rig.target.model.path
        self._costs = rig.calibrate()
        self._started = time.monotonic()
        self._seconds = 60.0 * minutes
        self._n_ctx = max(len(sample.prompt) + len(sample.reply) for sample in samples) + 1
        self._n_layer = 0
        self.candidates: list[Candidate] = []
        self.best: Candidate | None = None
        self.failures: list[str] = []  # of candidates that could not be made
        self.stopped = ""  # why before everything was tried

    @property
    def best_file(self) -> Path:
        """Where the best candidate is."""
        return self._folder / "best.gguf"

    def run(self) -> Iterator[Step]:
        """Try candidates until the time is over, the disk full or nothing better in sight. Raises Cancelled."""
        for kind in TYPES:
            if self._over(1.0):
                return
            yield from self._try(kind, (), self._target)
        if self.best is None:
            return
        kind = self.best.kind
        # Layers are left out of a copy in that type: its tensors are then copied, not quantised again.
        base = self._folder / "base.gguf"
        shutil.copyfile(self.best_file, base)
        order = yield from self._order(kind, base)
        if not order:
            self.stopped = self.stopped or "the time is over"
        worse = 0
        for count in (count for count in COUNTS if count <= len(order)):
            if self._over(1.0) or worse == PATIENCE:
                return
            before = self.best
            if count > 1:  # single ones have been tried
                yield from self._try(kind, tuple(sorted(order[:count])), base)
                worse = 0 if self.best is not before else worse + 1

    def _order(self, kind: str, base: Path) -> Generator[Step, None, list[int]]:
        """Layers by how little agreement the removal of each alone costs; as many as there is time for."""
        loss: dict[int, float] = {}
        layers = range(KEPT_ENDS, self._n_layer - KEPT_ENDS)
        # The middle first: its layers matter least.
        middle = self._n_layer / 2
        for layer in sorted(layers, key=lambda layer: abs(layer - middle)):
            if self._over(SHARE):
                break
            candidate = yield from self._try(kind, (layer,), base, f"layer {layer} of {self._n_layer}")
            if candidate is not None:
                loss[layer] = -candidate.agreement
        return sorted(loss, key=lambda layer: loss[layer])

    def _over(self, share: float) -> bool:
        """Is this share of the time used up (or the disk full)?"""
        if time.monotonic() - self._started >= share * self._seconds:
            if share == 1.0:
                self.stopped = self.stopped or "the time is over"
            return True
        return bool(self.stopped)

    def _try(
        self, kind: str, pruned: tuple[int, ...], source: Path, what: str = ""
    ) -> Generator[Step, None, Candidate | None]:
        """Make one candidate and judge it; the better one of it and the best stays on disk."""
        needed = source.stat().st_size + MARGIN
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            self.stopped = f"the disk has {format_bytes(free)} left, and the next candidate may need more"
            return None
        file = self._folder / "candidate.gguf"
        name = f"trying {kind}" + (f" without {what or f'{len(pruned)} layers'}" if pruned else "")
        try:
            yield from made.make(source, file, kind, pruned, name)
        except SpecchatError as error:
            if self._rig.cancelled():  # Ctrl+C has ended the quantiser too
                raise Cancelled from None
            self.failures.append(str(error))
            return None
        candidate = self._judged(file, kind, pruned)
        self.candidates.append(candidate)
        if self.best is None or candidate.outlook.speed_up > self.best.outlook.speed_up:
            file.replace(self.best_file)
            self.best = candidate
        else:
            file.unlink()
        return candidate

    def _judged(self, file: Path, kind: str, pruned: tuple[int, ...]) -> Candidate:
        # Beside the target: on its devices if it is on any.
        placement = Placement(self._rig.placement.gpu_layers, self._rig.placement.devices)
        with load(file, placement) as model:
            self._n_layer = max(self._n_layer, model.n_layer)
            with self._rig.place(model, placement, self._n_ctx) as context:
                agreed = agreement(context, self._samples)
                table = self._priced(context)
        costs = Costs(self._costs.target, table, measured=True)
        return Candidate(kind, pruned, file.stat().st_size, agreed, table[1], outlook(agreed, costs).best)

    def _priced(self, context: Context) -> dict[int, float]:
        """Seconds of the candidate's steps, as if the machine were as quick as when the target was timed."""
        plain = calibrate_draft(self._rig.target)[1]
        table = calibrate_draft(context)
        now = min(plain, calibrate_draft(self._rig.target)[1])
        return {width: seconds * self._costs.target[1] / now for width, seconds in table.items()}


# ---- keeping the result


def keep(search: Search, library: Library, pair: Pair) -> Pair:
    """Install the best candidate as the draft of `pair`, one of the user's own; the pair as it is then.

    Its entry says how the draft was made, so that it can be made again. Should the name have been taken while the
    search ran, a number is put behind it. Raises SpecchatError.
    """
    best = search.best
    assert best is not None
    pair = replace(pair, name=own.free_name(catalog.load(), pair.name))
    draft = ModelFile(f"{pair.name}-draft", MadeSource(pair.target.name, best.kind, best.pruned))
    whole = replace(pair, draft=draft)
    part = draft.parts[0]
    path = library.install_path(part)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with search.best_file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        search.best_file.replace(path)
        library.record(part, digest, recipe=recipe(draft))
    except OSError as error:
        raise SpecchatError(f"cannot keep the draft in {path.parent}: {error.strerror}") from error
    own.add(whole)
    return whole
