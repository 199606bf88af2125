"""The plan: where target, draft and both caches go, how long the context is, and why.

Contract: `plan` ranks the ways to place a pair by predicted speed, from everything on the best device down to the
target alone in RAM, and keeps those that fit. A context length that was asked for is shortened only if not even the
target alone has room for it. "Auto" is 8,192 tokens first (or what the model was trained for), then the draft gets
its place, then the context grows to at most 32,768 while that still fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from specchat.memory import shapes
from specchat.memory.machine import RAM, Device, Machine, missing
from specchat.memory.shapes import Pass, Shape
from specchat.units import format_lack

FIRST_CONTEXT: Final = 8192
LONGEST_CONTEXT: Final = 32768
SHORTEST_CONTEXT: Final = 1024  # shorter ones are no use for a chat
_STEP: Final = 1024  # tokens by which "auto" looks for room
_USUAL_DEPTH: Final = 4  # steps of a draft in a round
# States of a hybrid target to go back to: as many proposals as a round usually has. Each is a copy of all its state
# (some 50 MB for a model of 9 billion weights), written with every pass.
SNAPSHOTS: Final = 4
ALL_LAYERS: Final = 999  # more than any model has, the output counted as one


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one model and its cache go. `gpu_layers` counts from the last, the output being one; 0: all in RAM."""

    gpu_layers: int = 0
    devices: tuple[str, ...] = ()  # for those layers
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool | None = None  # None: llama.cpp decides
    snapshots: int = 0  # of a hybrid target's state


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to place a pair, in words too; without a draft there is n-gram look-up and plain decoding."""

    name: str
    target: Placement
    draft: Placement | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Something that takes memory: which model's, what it is, where."""

    role: str  # "target" or "draft"
    what: str
    device: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be placed, and what the user said about it; None leaves it to the plan."""

    target: Shape
    draft: Shape | None = None
    n_ctx: int | None = None
    gpu_layers: int | None = None
    devices: tuple[str, ...] = ()  # to use; empty: all
    limit: int | None = None  # bytes, on each device
    exact: bool = False
    type_k: str = "f16"  # of the target's cache
    type_v: str = "f16"
    batches: Mapping[bool, int] = field(default_factory=lambda: {False: 256, True: 512})  # tokens a pass, with a GPU
    n_outputs: int = 33  # rows of logits a pass


@dataclass(frozen=True, slots=True)
class Plan:
    """`rungs` are the ways that fit, best first: the first is what is planned, the others are what is left if it
    turns out not to hold. None fits: `missing` bytes are short for the target alone, on `short_on`."""

    wish: Wish
    machine: Machine
    rungs: tuple[Rung, ...]
    n_ctx: int
    parts: tuple[Part, ...]
    reasons: tuple[str, ...]  # a sentence for every step down
    missing: int = 0
    short_on: str = ""
    absent: tuple[str, ...] = ()  # a sentence for everything that was asked for and that this machine has not

    @property
    def draft_obstacle(self) -> str:
        """Why the draft that was asked for has no place; "" where it has one, or none was asked for."""
        without = self.wish.draft is not None and bool(self.rungs) and self.rungs[0].draft is None
        return f"memory does not hold the draft model too ({'; '.join(self.reasons)})" if without else ""

    @property
    def use(self) -> dict[str, int]:
        """Bytes taken of RAM and of each device, by name."""
        return use(self.parts)


def plan(wish: Wish, machine: Machine) -> Plan:
    """See the module."""
    machine = _chosen(machine, wish.devices)
    asked, *shorter = _lengths(wish)
    for n_ctx in (asked, *shorter):
        fitting, reasons = _sorted_out(wish, machine, n_ctx)
        if fitting:
            break
    else:
        return _impossible(wish, machine, n_ctx)
    best = fitting[0]
    if n_ctx != wish.n_ctx:
        n_ctx = _grown(wish, machine, best, n_ctx)
        also, _ = _sorted_out(wish, machine, n_ctx)
        best = next((rung for rung in also if rung.name == best.name), best)
        fitting = [best, *(rung for rung in also if rung != best)]
    if n_ctx < asked:
        reasons = [f"a context of {asked:,} tokens does not fit even without a draft: it is {n_ctx:,}", *reasons]
    needed = tuple(parts(wish, machine, best, n_ctx))
    return Plan(wish, machine, tuple(fitting), n_ctx, needed, tuple(reasons))


def settled(of: Plan, rung: Rung, reasons: Sequence[str]) -> Plan:
    """The plan as it came out: on that rung, for more reasons than were foreseen."""
    needed = tuple(parts(of.wish, of.machine, rung, of.n_ctx))
    return replace(of, rungs=(rung,), parts=needed, reasons=(*of.reasons, *reasons))


def _impossible(wish: Wish, machine: Machine, n_ctx: int) -> Plan:
    """The plan for what does not fit: the target alone where least of it is missing."""
    alone = [rung for rung in _candidates(wish, machine, n_ctx) if rung.draft is None]
    lacks = [missing(use(parts(wish, machine, rung, n_ctx)), machine, wish.limit) for rung in alone]
    rung, lack = min(zip(alone, lacks, strict=True), key=lambda pair: sum(pair[1].values()))
    where, short = max(lack.items(), key=lambda item: item[1])
    needed = tuple(parts(wish, machine, rung, n_ctx))
    reason = f"{wish.target.name} with a context of {n_ctx:,} tokens needs {format_lack(short)} more {_of(where)}"
    return Plan(wish, machine, (), n_ctx, needed, (reason,), short, where)


def _chosen(machine: Machine, names: Sequence[str]) -> Machine:
    if not names:
        return machine
    return replace(machine, devices=tuple(device for device in machine.devices if device.name in names))


# ---- the context's length


def _lengths(wish: Wish) -> Iterator[int]:
    """What to try, the wished-for first. Whoever asked for more than the model was trained for gets that at most."""
    trained = wish.target.n_ctx_train or LONGEST_CONTEXT
    length = wish.n_ctx or min(FIRST_CONTEXT, trained)
    yield length
    if length > trained:
        length = trained
        yield length
    while length > SHORTEST_CONTEXT:
        # The next power of two below.
        length = max(SHORTEST_CONTEXT, 1 << ((length - 1).bit_length() - 1))
        yield length


def _grown(wish: Wish, machine: Machine, rung: Rung, n_ctx: int) -> int:
    """The longest context that this rung has room for: as asked (see `_lengths`) at the price of speed, or as "auto"
    goes."""
    asked = wish.n_ctx or FIRST_CONTEXT
    trained = wish.target.n_ctx_train or n_ctx
    most = min(wish.n_ctx or LONGEST_CONTEXT, trained)

    def fits(length: int) -> bool:
        slower = (other for other in _candidates(wish, machine, length) if other.name == rung.name)
        return any(not _short(wish, machine, one, length) for one in (rung, *(slower if length <= asked else ())))

    low, high = 0, max(0, (most - n_ctx) // _STEP)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(n_ctx + middle * _STEP) else (low, middle - 1)
    return n_ctx + low * _STEP


# ---- the rungs


def _sorted_out(wish: Wish, machine: Machine, n_ctx: int) -> tuple[list[Rung], list[str]]:
    """The candidates that fit, in order, and why those above the first of them do not."""
    fitting: list[Rung] = []
    short: list[str] = []
    for rung in _candidates(wish, machine, n_ctx):
        lack = _short(wish, machine, rung, n_ctx)
        if not lack:
            fitting.append(rung)
        elif not fitting:
            short.append(_lacking(rung, lack))
    return fitting, short


def _short(wish: Wish, machine: Machine, rung: Rung, n_ctx: int) -> dict[str, int]:
    return missing(use(parts(wish, machine, rung, n_ctx)), machine, wish.limit)


def _lacking(rung: Rung, lack: Mapping[str, int]) -> str:
    where, short = max(lack.items(), key=lambda item: item[1])
    return f"{rung.name}: {format_lack(short)} too little {_of(where)}"


def _of(where: str) -> str:
    return "memory" if where == RAM else f"memory on {where}"


def _candidates(wish: Wish, machine: Machine, n_ctx: int) -> Iterator[Rung]:
    """Every way to place the pair, by predicted speed."""
    target = _target(wish)
    if not machine.devices or wish.gpu_layers == 0:
        yield from _in_ram(wish, machine, target, n_ctx)
        return
    names = tuple(device.name for device in machine.devices)
    where = " and ".join(names)
    if wish.gpu_layers is not None and wish.gpu_layers > 0 and wish.gpu_layers <= len(wish.target.layers):
        placed = replace(target, gpu_layers=wish.gpu_layers, devices=names)
        yield from _beside_gpu(wish, machine, placed, f"{wish.gpu_layers} layers of the target on {where}")
        return
    whole = replace(target, gpu_layers=ALL_LAYERS, devices=names)
    yield from _beside_gpu(wish, machine, whole, f"the target on {where}")
    yield from _partly_on_gpu(wish, machine, whole, where, n_ctx)
    yield from _in_ram(wish, machine, target, n_ctx)


def _target(wish: Wish) -> Placement:
    # With flash attention and V in bf16 one row comes out the same bits at every width on a CPU: ggml-cpu then takes
    # one path for a single token and for several.
    snapshots = SNAPSHOTS if wish.target.is_hybrid else 0
    if wish.exact:
        return Placement(type_k=wish.type_k, type_v="bf16", flash_attention=True, snapshots=snapshots)
    quantised = wish.type_v not in ("f32", "f16", "bf16")  # which llama.cpp wants flash attention for
    flash = True if quantised else None
    return Placement(type_k=wish.type_k, type_v=wish.type_v, flash_attention=flash, snapshots=snapshots)


def _in_ram(wish: Wish, machine: Machine, target: Placement, n_ctx: int) -> Iterator[Rung]:
    """Everything in RAM, with the draft and without; without flash attention where there is room for that.

    Flash attention on a CPU takes fewer than 64 rows one by one (ggml-cpu/ops.cpp: GGML_FA_TILE_Q), and so few are what
    verifying has. Without it 16 rows over 800 tokens took two thirds of the time (SmolLM2-135M, Q8_0); the scores of a
    whole batch then stand in memory, which is much where the context is long. With it is what the target comes down to
    last, should there be less room than was thought.
    """
    pair = [Rung("both models in RAM", target, Placement())] if wish.draft is not None else []
    for rung in (*pair, Rung("the target alone in RAM", target)):
        quick = replace(rung, target=_without_flash(rung.target), draft=rung.draft and _without_flash(rung.draft))
        fits = not _short(wish, machine, quick, n_ctx)
        if fits:
            yield quick
        if not fits or (rung.draft is None and rung != quick):
            yield rung


def _without_flash(placement: Placement) -> Placement:
    chosen = placement.flash_attention is not None  # by exact mode, or by a quantised cache
    return placement if chosen else replace(placement, flash_attention=False)


def _beside_gpu(wish: Wish, machine: Machine, target: Placement, name: str) -> Iterator[Rung]:
    for draft_name, draft in _drafts(wish, machine):
        together = (
            draft is not None and draft == Placement(ALL_LAYERS, target.devices) and target.gpu_layers == ALL_LAYERS
        )
        yield Rung(f"both models on {target.devices[0]}" if together else f"{name}{draft_name}", target, draft)


def _partly_on_gpu(wish: Wish, machine: Machine, whole: Placement, where: str, n_ctx: int) -> Iterator[Rung]:
    """As many of the target's layers as each place of the draft leaves room for; what is read from RAM in a round,
    which is far slower than a GPU's memory, decides the order."""
    rungs: list[Rung] = []
    for draft_name, draft in _drafts(wish, machine):
        layers = _layers_that_fit(wish, machine, whole, draft, n_ctx)
        if layers > 0:
            text = f"{layers} of {len(wish.target.layers) + 1} layers of the target on {where}{draft_name}"
            rungs.append(Rung(text, replace(whole, gpu_layers=layers), draft))

    def key(rung: Rung) -> tuple[bool, int]:
        steps = 0 if rung.draft is None or rung.draft.gpu_layers else _USUAL_DEPTH
        draft = wish.draft.weights if wish.draft else 0
        n = len(wish.target.layers) + 1 - rung.target.gpu_layers
        return rung.draft is None, sum(layer.weights for layer in wish.target.layers[:n]) + steps * draft

    yield from sorted(rungs, key=key)


def _drafts(wish: Wish, machine: Machine) -> Iterator[tuple[str, Placement | None]]:
    """The draft's places beside a target on a GPU, by predicted speed; none last."""
    if wish.draft is not None:
        best = _roomiest(machine)
        if best is not None:
            on_gpu = Placement(ALL_LAYERS, (best.name,))
            yield f", the draft on {best.name}", on_gpu
            smaller = replace(on_gpu, type_k="q8_0", type_v="q8_0", flash_attention=True)
            yield f", the draft on {best.name} with a q8_0 cache", smaller
        yield ", the draft in RAM", Placement()
    yield ", no draft" if wish.draft else "", None


def _roomiest(machine: Machine) -> Device | None:
    """Where a draft goes whole: its own machine's GPU with the most room. A network costs more than it drafts."""
    return max((d for d in machine.devices if not d.is_remote), key=lambda device: device.free, default=None)


def _layers_that_fit(wish: Wish, machine: Machine, target: Placement, draft: Placement | None, n_ctx: int) -> int:
    """The most layers of the target that the devices hold beside the draft."""

    def fits(layers: int) -> bool:
        rung = Rung("", replace(target, gpu_layers=layers), draft)
        lack = _short(wish, machine, rung, n_ctx)
        return not any(name != RAM for name in lack)

    low, high = 0, len(wish.target.layers)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


# ---- what a rung takes


def use(of: Sequence[Part] | Iterator[Part]) -> dict[str, int]:
    """Bytes by name of RAM or device."""
    total: dict[str, int] = {}
    for part in of:
        total[part.device] = total.get(part.device, 0) + part.bytes
    return total


def parts(wish: Wish, machine: Machine, rung: Rung, n_ctx: int) -> Iterator[Part]:
    """Everything that a rung takes, where it takes it."""
    yield from _model_parts("target", wish.target, rung.target, wish, machine, n_ctx)
    if wish.draft is not None and rung.draft is not None:
        yield from _model_parts("draft", wish.draft, rung.draft, wish, machine, n_ctx)


def _model_parts(
    role: str, model: Shape, placement: Placement, wish: Wish, machine: Machine, n_ctx: int
) -> Iterator[Part]:
    n_batch = min(wish.batches[placement.gpu_layers > 0], n_ctx)
    run = Pass(n_batch, min(wish.n_outputs, n_batch), placement.flash_attention is not False)
    homes = homes_of(model, placement, machine)
    weights = dict.fromkeys((RAM, *homes), 0)
    caches = dict(weights)
    for layer, home in zip(model.layers, homes, strict=False):
        weights[home] += layer.weights
        caches[home] += shapes.cache_bytes(layer, n_ctx, placement.type_k, placement.type_v, placement.snapshots)
    weights[RAM] += model.input_bytes
    weights[homes[-1]] += model.output_bytes + (model.input_bytes if model.is_tied and homes[-1] != RAM else 0)
    cache = "state" if not any(layer.keys for layer in model.layers) else _cache_name(placement)
    for home in weights:
        yield Part(role, "weights", home, weights[home])
        if caches[home]:
            yield Part(role, cache, home, caches[home])
        if home != RAM or homes[0] == RAM:
            yield Part(role, "compute buffer", home, shapes.compute_bytes(model, n_ctx, run))
    if homes[0] != RAM:  # the inputs of a pass are laid out in RAM before they travel
        inputs = shapes.mask_bytes(model, n_ctx, run) + run.n_batch * model.n_embd * 4
        yield Part(role, "input buffer", RAM, inputs)
    yield Part(role, "logits", RAM, shapes.logits_bytes(model, run))


def _cache_name(placement: Placement) -> str:
    types = dict.fromkeys((placement.type_k, placement.type_v))
    return f"KV cache ({' and '.join(types)})"


def homes_of(model: Shape, placement: Placement, machine: Machine) -> list[str]:
    """Where each layer goes, the output last: as llama.cpp shares them out, by the devices' free memory."""
    n = len(model.layers) + 1
    offloaded = min(placement.gpu_layers, n) if placement.devices else 0
    homes = [RAM] * (n - offloaded)
    if not offloaded:
        return homes
    free = [max(1, machine.device(name).free) for name in placement.devices]
    bounds = [bound / sum(free) for bound in accumulate(free)]
    last = len(bounds) - 1
    for i in range(offloaded):
        device = next((k for k, bound in enumerate(bounds) if bound > i / offloaded), last)
        homes.append(placement.devices[device])
    return homes
