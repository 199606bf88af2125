"""The models that a measurement is made on, loaded in this process.

Contract: whatever llama.cpp writes goes to the engine's log, not to the terminal. The models are placed as the chat
would place them, within the same limits, on the same devices, with the same types of cache. Unlike the chat, a
measurement falls back on nothing: a draft that cannot propose for the target or has no place beside it, or another
machine that does not answer, is a SpecchatError. Ctrl+C makes the pass under way
raise Cancelled (an exception in llama.cpp's own callback would be lost), and a second one ends everything.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from specchat import locations
from specchat.engine import exact, llama, remote, vocabulary
from specchat.engine.cache import Cancelled
from specchat.engine.calibration import calibrate
from specchat.engine.chat import Engine
from specchat.engine.costs import Costs
from specchat.engine.llama import Context, Model
from specchat.engine.policy import Policy
from specchat.engine.replies import Finished, Message, PromptTooLong, ReplyOptions
from specchat.engine.templates import ChatTemplate
from specchat.errors import SpecchatError
from specchat.memory.planning import Placement
from specchat.pairs.library import Step
from specchat.worker import loader
from specchat.worker.protocol import Load, LoadSettings


@dataclass(frozen=True, slots=True)
class Rig:
    """A target, maybe with its draft, each with one cache."""

    target: Context
    draft: Context | None
    placement: Placement  # the target's
    cancelled: Callable[[], bool]
    reasons: tuple[str, ...] = ()  # why the models are not where they would best be, a sentence each

    def clear(self) -> None:
        """Empty both caches, so that the next run reads its prompt itself."""
        for context in (self.target, self.draft):
            if context is not None:
                context.rollback(0)

    def engine(self, policy: Policy) -> Engine:
        """An engine over these caches. Not to be closed: the rig owns them."""
        return Engine(self.target.model, self.target, self.draft.model if self.draft else None, self.draft, policy)

    def calibrate(self) -> Costs:
        """What passes cost now. Takes at most about two seconds."""
        self.clear()
        return calibrate(self.target, self.draft)

    @contextmanager
    def exact_target(self) -> Iterator[Context]:
        """A second cache over the target, of exact mode's kind; whether it is exact remains to be checked."""
        placement = replace(self.placement, type_k=exact.TYPE_K, type_v=exact.TYPE_V, flash_attention=True)
        context = self.place(self.target.model, placement, self.target.n_ctx)
        try:
            yield context
        finally:
            context.close()

    def place(self, model: Model, placement: Placement, n_ctx: int) -> Context:
        """A cache with the threads that this rig computes with."""
        return _context(model, placement, n_ctx, self.target.threads, self.cancelled)

    def prompt(self, text: str) -> list[int]:
        """The tokens that a first message of this text comes to. Raises PromptTooLong if they leave no room."""
        tokens = ChatTemplate(self.target.model).render([Message("user", text)]).tokens
        if len(tokens) >= self.target.n_ctx:
            what = f"the prompt that begins with {' '.join(text.split())[:24]!r}"
            raise PromptTooLong(what, len(tokens), self.target.n_ctx)
        return tokens

    def text(self, tokens: Sequence[int], errors: str = "replace") -> str:
        """What tokens come to; `errors` as in bytes.decode."""
        return b"".join(map(self.target.model.piece, tokens)).decode("utf-8", errors)


@contextmanager
def opened(target: Path, draft: Path | None, settings: LoadSettings) -> Iterator[Rig]:
    """Load the models for a while. Raises SpecchatError; Cancelled leaves as KeyboardInterrupt."""
    log = locations.engine_log_file()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        llama.log_to(log)
    except OSError:  # a full or read-only disk is no reason not to measure
        llama.log_to(None)
    with ExitStack() as stack:
        cancelled = stack.enter_context(_interruptible())
        if absent := remote.connect(settings.rpc):
            raise SpecchatError("; ".join(absent))
        plan, obstacle = loader.planned(Load(0, target, draft, draft is not None, settings))
        if not plan.rungs or obstacle:
            raise SpecchatError(obstacle or "; ".join(plan.reasons))
        rung = plan.rungs[0]
        large = stack.enter_context(load(target, rung.target))
        placed = _context(large, rung.target, plan.n_ctx, settings.threads, cancelled)
        if settings.exact and (obstacle := exact.obstacle(placed) or ""):
            raise SpecchatError(obstacle)
        if draft is None:
            yield Rig(placed, None, rung.target, cancelled, plan.reasons)
            return
        if placed.rollback_limit == 0:
            raise SpecchatError(f"{target.name} cannot speculate: {large.rollback_obstacle}")
        if rung.draft is None:
            raise SpecchatError(f"{draft.name} has no place beside {target.name}: {plan.draft_obstacle}")
        small = stack.enter_context(load(draft, rung.draft))
        if unfit := vocabulary.unfit(large, small):
            raise SpecchatError(unfit)
        beside = _context(small, rung.draft, plan.n_ctx, settings.threads, cancelled)
        yield Rig(placed, beside, rung.target, cancelled, plan.reasons)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl+C was pressed, as a function to be polled; Cancelled leaves as KeyboardInterrupt."""
    pressed = threading.Event()

    def note(_signal: int, _frame: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, note) if in_main else None
    try:
        yield pressed.is_set
    except Cancelled:
        raise KeyboardInterrupt from None
    finally:
        if in_main:
            signal.signal(signal.SIGINT, before)


def load(path: Path, placement: Placement) -> Model:
    """A model where it was planned. What is kept in RAM stays off the GPU altogether."""
    return Model.load(path, gpu_layers=placement.gpu_layers, devices=placement.devices or ("CPU",))


def _context(
    model: Model, placement: Placement, n_ctx: int, threads: int | None, cancelled: Callable[[], bool]
) -> Context:
    return Context(
        model,
        n_ctx=n_ctx,
        threads=threads,
        type_k=placement.type_k,
        type_v=placement.type_v,
        flash_attention=placement.flash_attention,
        snapshots=placement.snapshots,
        cancelled=cancelled,
    )


def following(prompt: str, engine: Engine, options: ReplyOptions, text: str) -> Generator[Step, None, None]:
    """Have an engine write a reply that nobody measures. Raises Cancelled."""
    for event in engine.reply([Message("user", prompt)], options):
        yield Step(text)
        if isinstance(event, Finished) and event.reason == "cancelled":
            raise Cancelled
