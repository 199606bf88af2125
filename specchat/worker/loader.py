"""Models into memory: walks a list of rungs down until one holds, and says why it did not stay on a higher one.

Contract: `load_engine` returns a ready engine and what became of the request, or raises SpecchatError with everything
it had loaded given back. Whatever is wrong with the draft costs the draft, never the target, unless the user named
that draft (`Load.draft_required`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from specchat.engine import llama, vocabulary
from specchat.engine.calibration import calibrate
from specchat.engine.chat import Engine
from specchat.engine.costs import Costs
from specchat.engine.llama import Context, Model, ModelError
from specchat.engine.policy import AdaptivePolicy
from specchat.worker.measured import Measured, identity
from specchat.worker.protocol import EngineInfo, Load, ModelInfo

USUAL_CONTEXT: Final = 8192  # tokens, where neither the user nor the model asks for another length

Progress: TypeAlias = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one model and its cache go."""

    gpu_layers: int | None = None  # None: all of them where there is a GPU
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attention: bool | None = None  # None: llama.cpp decides


@dataclass(frozen=True, slots=True)
class Rung:
    """One way to place a pair; without a draft there is n-gram look-up and plain decoding."""

    target: Placement
    draft: Placement | None


def rungs(request: Load) -> tuple[Rung, ...]:
    """From the best to the last."""
    settings = request.settings
    # With flash attention and V in bf16 one row comes out the same bits at every width on a CPU: ggml-cpu then takes
    # one path for a single token and for several.
    exact = True if settings.exact else None
    target = Placement(settings.gpu_layers, type_v="bf16" if settings.exact else "f16", flash_attention=exact)
    draft = Placement(settings.gpu_layers)
    both, alone = Rung(target, draft), Rung(target, None)
    if request.draft is None:
        return (alone,)
    return (both,) if request.draft_required else (both, alone)


def load_engine(request: Load, progress: Progress, cancelled: Callable[[], bool]) -> tuple[Engine, EngineInfo]:
    """See the module. `progress` is told a phrase and a fraction; `cancelled` is asked in every pass from then on."""
    if request.log is not None:
        llama.log_to(request.log)
    loading = _Loading(request, progress, cancelled)
    failure = ModelError("there is no way to place these models")
    for placement, group in groupby(rungs(request), key=lambda rung: rung.target):
        try:
            return loading.attempt(placement, [rung.draft for rung in group])
        except ModelError as error:
            failure = error
            loading.close()
        except BaseException:
            loading.close()
            raise
    raise failure


class _Loading:
    """One request under way, and the models that it has in memory."""

    def __init__(self, request: Load, progress: Progress, cancelled: Callable[[], bool]) -> None:
        self._request, self._progress, self._cancelled = request, progress, cancelled
        self._models: list[Model] = []

    def close(self) -> None:
        """Give all memory back."""
        while self._models:
            self._models.pop().close()

    def attempt(self, placement: Placement, drafts: Sequence[Placement | None]) -> tuple[Engine, EngineInfo]:
        """The target in one place, the draft in the first that holds; None goes without. Raises ModelError."""
        target = self._place("target", self._request.target, placement, self._n_ctx)
        obstacle = unfit = self._unfit(target.model)
        for draft in drafts:
            if draft is None:
                return self._finish(target, None, obstacle)
            if unfit or self._request.draft is None:
                continue
            try:
                placed = self._place("draft", self._request.draft, draft, lambda _: target.n_ctx)
            except ModelError as error:
                obstacle = str(error)
                continue
            return self._finish(target, placed, "")
        raise ModelError(obstacle)

    def _place(self, role: str, path: Path, placement: Placement, n_ctx: Callable[[Model], int]) -> Context:
        """A model with its cache."""
        settings = self._request.settings

        def report(fraction: float) -> bool:
            self._progress(f"loading the {role}", fraction)
            return True

        model = Model.load(path, gpu_layers=placement.gpu_layers, devices=settings.devices, progress=report)
        self._models.append(model)
        try:
            return Context(
                model,
                n_ctx=n_ctx(model),
                threads=settings.threads,
                type_k=placement.type_k,
                type_v=placement.type_v,
                flash_attention=placement.flash_attention,
                cancelled=self._cancelled,
            )
        except ModelError:
            self._models.remove(model)
            model.close()
            raise

    def _n_ctx(self, model: Model) -> int:
        return self._request.settings.n_ctx or min(USUAL_CONTEXT, model.n_ctx_train)

    def _unfit(self, target: Model) -> str:
        """Why the draft asked for cannot propose for this target wherever it is placed; "" if it can.

        Only its header and vocabulary are read: nothing large is loaded in vain.
        """
        if self._request.draft is None:
            return ""
        if target.rollback_obstacle:
            return target.rollback_obstacle
        try:
            with Model.load(self._request.draft, vocab_only=True) as draft:
                return draft.rollback_obstacle or vocabulary.mismatch(target, draft) or ""
        except ModelError as error:
            return str(error)

    def _finish(self, target: Context, draft: Context | None, obstacle: str) -> tuple[Engine, EngineInfo]:
        measured = Measured.of(*self._conditions(target, draft))
        costs = measured.costs or self._calibrate(target, draft)
        policy = AdaptivePolicy(self._request.settings.speculation, costs, measured.learned)

        def keep() -> None:
            measured.save(costs, policy.learned() if draft else None)

        if measured.costs is None:
            keep()
        engine = Engine(target.model, target, draft.model if draft else None, draft, policy, keep)
        info = EngineInfo(
            target=_info(target.model),
            draft=_info(draft.model) if draft else None,
            n_ctx=target.n_ctx,
            threads=target.threads,
            devices=self._devices(),
            draft_obstacle=obstacle,
            thinks=engine.template.thinks,
            can_toggle_thinking=engine.template.can_toggle_thinking,
            notices=tuple(self._notices(target, obstacle)),
        )
        return engine, info

    def _conditions(self, *contexts: Context | None) -> Iterator[object]:
        """Whatever the measured costs depend on."""
        settings = self._request.settings
        yield version("llama-cpp-python"), self._devices(), settings.gpu_layers, settings.exact
        for context in contexts:
            yield (identity(context.model.path), context.threads) if context else None

    def _calibrate(self, target: Context, draft: Context | None) -> Costs:
        self._progress("measuring this machine", None)
        return calibrate(target, draft)

    def _devices(self) -> tuple[str, ...]:
        settings = self._request.settings
        gpus = [device for device in llama.devices() if device.kind in ("gpu", "igpu")]
        chosen = [device for device in gpus if not settings.devices or device.name in settings.devices]
        used = [f"{device.name} ({device.description})" for device in chosen if settings.gpu_layers != 0]
        return tuple(used) or ("CPU",)

    def _notices(self, target: Context, obstacle: str) -> Iterator[str]:
        model = target.model
        if model.rollback_obstacle and not obstacle:
            yield f"no speculation with this model: {model.rollback_obstacle}"
        if target.n_ctx > model.n_ctx_train:
            yield f"{model.path.name} was trained for {model.n_ctx_train:,} tokens: beyond that its text gets worse"


def _info(model: Model) -> ModelInfo:
    return ModelInfo(model.name, model.description, model.size_bytes)
