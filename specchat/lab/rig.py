"""The models that a measurement is made on, loaded in this process.

Contract: whatever llama.cpp writes goes to the engine's log, not to the terminal. Unlike the chat, a measurement
falls back on nothing: a draft that cannot propose for the target is a SpecchatError. Ctrl+C makes the pass under way
raise Cancelled (an exception in llama.cpp's own callback would be lost), and a second one ends everything.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from specchat import locations
from specchat.engine import exact, llama, remote, vocabulary
from specchat.engine.cache import Cancelled
from specchat.engine.calibration import calibrate
from specchat.engine.chat import Engine, Finished, Message, ReplyOptions
from specchat.engine.costs import Costs
from specchat.engine.llama import Context, Model
from specchat.engine.policy import Policy
from specchat.engine.templates import ChatTemplate
from specchat.errors import SpecchatError
from specchat.pairs.library import Step
from specchat.worker.loader import USUAL_CONTEXT
from specchat.worker.protocol import LoadSettings


@dataclass(frozen=True, slots=True)
class Rig:
    """A target, maybe with its draft, each with one cache."""

    target: Context
    draft: Context | None
    settings: LoadSettings
    cancelled: Callable[[], bool]

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
        context = place(self.target.model, self.settings, self.cancelled, n_ctx=self.target.n_ctx, exact_mode=True)
        try:
            yield context
        finally:
            context.close()

    def prompt(self, text: str) -> list[int]:
        """The tokens that a first message of this text comes to."""
        return ChatTemplate(self.target.model).render([Message("user", text)]).tokens

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
    if absent := remote.connect(settings.rpc):
        raise SpecchatError(absent[0])
    with ExitStack() as stack:
        cancelled = stack.enter_context(_interruptible())
        placed = place(stack.enter_context(load(target, settings)), settings, cancelled, exact_mode=settings.exact)
        if settings.exact and (obstacle := exact.obstacle(placed)):
            raise SpecchatError(obstacle)
        small = None if draft is None else stack.enter_context(load(draft, settings))
        if small is None:
            yield Rig(placed, None, settings, cancelled)
            return
        if placed.model.rollback_obstacle:
            raise SpecchatError(f"{target.name} cannot speculate: {placed.model.rollback_obstacle}")
        if obstacle := small.rollback_obstacle or vocabulary.mismatch(placed.model, small):
            raise SpecchatError(f"{small.path.name} cannot draft for {target.name}: {obstacle}")
        yield Rig(placed, place(small, settings, cancelled, n_ctx=placed.n_ctx), settings, cancelled)


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


def load(path: Path, settings: LoadSettings) -> Model:
    """A model where the settings want it."""
    return Model.load(path, gpu_layers=settings.gpu_layers, devices=settings.devices)


def place(
    model: Model,
    settings: LoadSettings,
    cancelled: Callable[[], bool],
    *,
    n_ctx: int | None = None,
    exact_mode: bool = False,
) -> Context:
    """A cache over a model, as the chat would make it."""
    return Context(
        model,
        n_ctx=n_ctx or settings.n_ctx or min(USUAL_CONTEXT, model.n_ctx_train),
        threads=settings.threads,
        type_k=exact.TYPE_K if exact_mode else "f16",
        type_v=exact.TYPE_V if exact_mode else "f16",
        flash_attention=True if exact_mode else None,
        cancelled=cancelled,
    )


def following(prompt: str, engine: Engine, options: ReplyOptions, text: str) -> Generator[Step, None, None]:
    """Have an engine write a reply that nobody measures. Raises Cancelled."""
    for event in engine.reply([Message("user", prompt)], options):
        yield Step(text)
        if isinstance(event, Finished) and event.reason == "cancelled":
            raise Cancelled
