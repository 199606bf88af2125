"""Models into memory: walks the plan's rungs down until one holds, and says why it did not stay on a higher one.

Contract: `load_engine` returns a ready engine and what became of the request, or raises SpecchatError with everything
it had loaded given back. Whatever is wrong with the draft costs the draft, never the target, unless the user named
that draft (`Load.draft_required`) and it cannot propose for this target; a lack of memory never costs more than it
must; exact mode where a model cannot have it costs a notice. Estimates may be wrong, so each stage of a rung is tried
for real: weights, cache, and a first pass as wide as any that will follow. `restore_draft` loads a draft beside a
target that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from specchat.engine import exact, header, llama, remote, vocabulary
from specchat.engine.cache import Cancelled
from specchat.engine.calibration import calibrate, calibrate_draft
from specchat.engine.chat import Engine
from specchat.engine.costs import Costs
from specchat.engine.llama import N_OUTPUTS_MAX, Context, Model, ModelError, OutOfMemory
from specchat.engine.policy import AdaptivePolicy
from specchat.errors import SpecchatError
from specchat.memory import planning, shapes, table
from specchat.memory.machine import Machine, within
from specchat.memory.planning import Placement, Plan, Rung, Wish
from specchat.memory.shapes import Shape
from specchat.units import format_memory
from specchat.worker import machine as here
from specchat.worker import measured
from specchat.worker.measured import Measured, identity
from specchat.worker.pressure import Pressure
from specchat.worker.protocol import EngineInfo, Load, ModelInfo

USUAL_CONTEXT: Final = planning.FIRST_CONTEXT

Progress: TypeAlias = Callable[[str, float | None], None]


class NotExact(SpecchatError):
    """Exact mode was asked for and this model cannot have it here: the sentence says why, and what could."""


def load_engine(request: Load, progress: Progress, cancelled: Callable[[], bool]) -> tuple[Engine, EngineInfo]:
    """See the module. `progress` is told a phrase and a fraction; `cancelled` is asked in every pass from then on."""
    if request.log is not None:
        llama.log_to(request.log)
    try:
        return _walk(request, progress, cancelled)
    except NotExact as refusal:
        usual = replace(request, settings=replace(request.settings, exact=False))
        engine, info = _walk(usual, progress, cancelled)
        return engine, replace(info, notices=(f"exact mode is off: {refusal}", *info.notices))


def _walk(request: Load, progress: Progress, cancelled: Callable[[], bool]) -> tuple[Engine, EngineInfo]:
    plan, obstacle = planned(request)
    if not plan.rungs:
        raise OutOfMemory("; ".join((*plan.absent, *plan.reasons)))
    loading = _Loading(request, plan, obstacle, progress, cancelled)
    failure = ModelError("there is no way to place these models")
    first = min(request.steps_down, len(plan.rungs) - 1)
    steps = tuple(enumerate(plan.rungs))[first:]
    for placement, group in groupby(steps, key=lambda step: step[1].target):
        attempts = list(group)
        try:
            return loading.attempt(placement, attempts)
        except ModelError as error:
            failure = error
            loading.failed(attempts[0][1], error)
        except BaseException:
            loading.close()
            raise
    raise failure


def planned(request: Load) -> tuple[Plan, str]:
    """The plan for a request on this machine as it is now (see `make_plan`). Raises ModelError."""
    absent = [f"{sentence}: going on without" for sentence in remote.connect(request.settings.rpc)]
    machine = here.read()
    if request.settings.gpu_layers and not machine.devices:
        absent.append("no layer is placed on a GPU: this build of llama.cpp finds none (`specchat doctor` says more)")
    plan, obstacle = make_plan(request, machine)
    return replace(plan, absent=tuple(absent)), obstacle


def make_plan(request: Load, machine: Machine) -> tuple[Plan, str]:
    """The plan for a request, and why its draft, if it names one, is left out of it. Raises ModelError."""
    settings, draft, obstacle = request.settings, None, ""
    _check_devices(settings.devices, machine)
    target = shape(request.target)
    if request.draft is not None:
        try:
            draft = shape(request.draft)
        except ModelError as error:
            obstacle = str(error)
    wish = Wish(
        target=target,
        draft=None if target.is_recurrent and not target.is_hybrid else draft,  # which could not take tokens back
        n_ctx=settings.n_ctx,
        gpu_layers=settings.gpu_layers,
        devices=settings.devices,
        limit=settings.memory_limit,
        exact=settings.exact,
        type_k=settings.type_k,
        type_v=settings.type_v,
    )
    return planning.plan(wish, machine), obstacle


def _check_devices(names: Sequence[str], machine: Machine) -> None:
    known = ["CPU", *(device.name for device in machine.devices)]
    if unknown := [name for name in names if name not in known]:
        raise ModelError(f"there is no device {', '.join(unknown)} here; there is {', '.join(known)}")


def shape(path: Path) -> Shape:
    """What decides the memory that the model at `path` takes. Raises ModelError."""
    found = header.read(path)
    return shapes.shape(path.name, found.metadata, found.lengths, found.tensors)


def restore_draft(
    engine: Engine, info: EngineInfo, request: Load, progress: Progress, cancelled: Callable[[], bool]
) -> EngineInfo:
    """Load the request's draft beside a running target, where memory suffices now; what is loaded then."""
    if request.draft is None or engine.has_draft:
        return info
    target = engine.target_context
    machine = here.read()
    plan = plan_draft(shape(request.draft), target, request, machine)
    loading = _Loading(request, plan, "", progress, cancelled)
    obstacle = plan.reasons[0] if not plan.rungs else loading.unfit(target)
    for rung in () if obstacle else plan.rungs:
        try:
            draft = loading.place("draft", request.draft, rung.target, target.n_ctx)
        except ModelError as error:
            obstacle = str(error)
            continue
        policy, keep = loading.policy(target, draft, info.devices, engine.costs)
        engine.attach_draft(draft, policy, keep, loading.pressure(rung.target))
        where = " and ".join(f"{format_memory(size)} in {name}" for name, size in plan.use.items())
        lines = (*info.plan, f"since then the draft model came back: {where}")
        return replace(info, draft=_info(draft.model), draft_obstacle="", draft_can_return=False, plan=lines)
    return replace(info, draft_obstacle=obstacle)


def plan_draft(draft: Shape, target: Context, request: Load, machine: Machine) -> Plan:
    """Where a draft alone may go now: what the running target takes is no longer free, nor left of the user's limit."""
    limit = request.settings.memory_limit
    if limit is not None:
        rung = Rung("", Placement(*target.setting))
        taken = planning.use(planning.parts(Wish(shape(request.target)), machine, rung, target.n_ctx))
        machine = within(limit, taken, machine)
    on_gpu = target.model.gpu_layers > 0
    wish = Wish(
        draft,
        n_ctx=target.n_ctx,
        gpu_layers=None if on_gpu else 0,
        devices=tuple(device.name for device in machine.devices if not device.is_remote),
    )
    plan = planning.plan(wish, machine)
    if plan.n_ctx == target.n_ctx:
        return plan
    where = "" if limit is None else f" within {format_memory(limit)}"
    reason = f"there is not enough memory for {draft.name} beside the target{where}"
    return replace(plan, rungs=(), reasons=(reason,))


class _Loading:
    """One request under way, and the models that it has in memory."""

    def __init__(
        self, request: Load, plan: Plan, obstacle: str, progress: Progress, cancelled: Callable[[], bool]
    ) -> None:
        self._request, self._plan, self._obstacle = request, plan, obstacle
        self._progress, self._cancelled = progress, cancelled
        self._models: list[Model] = []
        self._failures: list[str] = []  # of rungs that fitted by the plan

    def close(self) -> None:
        """Give all memory back."""
        while self._models:
            self._models.pop().close()

    def failed(self, rung: Rung, error: ModelError) -> None:
        """Give back what there is of a rung that did not hold, and remember why."""
        self.close()
        self._failures.append(f"{rung.name}: {error}")

    def attempt(self, placement: Placement, steps: Sequence[tuple[int, Rung]]) -> tuple[Engine, EngineInfo]:
        """The target in one place, the draft in the first that holds. Raises ModelError."""
        request = self._request
        target = self.place("target", request.target, placement, self._plan.n_ctx)
        if request.settings.exact and (refusal := self._refusal(target, self._devices(placement))):
            raise NotExact(refusal)
        unfit = (self._obstacle or self.unfit(target)) if request.draft else ""
        if unfit and request.draft_required:
            raise ModelError(unfit)
        obstacle = unfit or self._plan.draft_obstacle
        step, rung = steps[0]
        if rung.draft is None and self._plan.wish.draft and not obstacle:
            if self._failures:
                obstacle = f"memory does not hold the draft model too ({'; '.join(self._failures)})"
            elif request.steps_down:
                obstacle = "the engine ended, probably for want of memory, with the draft model: it was left out"
        for step, rung in steps:
            if rung.draft is None or unfit or request.draft is None:
                break
            try:
                placed = self.place("draft", request.draft, rung.draft, target.n_ctx)
            except ModelError as error:
                obstacle = str(error)
                self._failures.append(f"{rung.name}: {error}")
                continue
            return self._finish(target, placed, step, rung, "", unfit)
        alone = Rung(rung.name if rung.draft is None else "the target alone", placement)
        return self._finish(target, None, step, alone, obstacle, unfit)

    def place(self, role: str, path: Path, placement: Placement, n_ctx: int) -> Context:
        """A model with its cache, and a first pass through both. Raises ModelError with nothing left behind."""
        settings = self._request.settings

        def report(fraction: float) -> bool:
            self._progress(f"loading the {role}", fraction)
            return True

        # What is kept in RAM stays off the GPU altogether: llama.cpp would use it for long prompts all the same.
        devices = placement.devices or ("CPU",)
        model = Model.load(path, gpu_layers=placement.gpu_layers, devices=devices, progress=report)
        self._models.append(model)
        try:
            context = Context(
                model,
                n_ctx=n_ctx,
                threads=settings.threads,
                type_k=placement.type_k,
                type_v=placement.type_v,
                flash_attention=placement.flash_attention,
                snapshots=placement.snapshots,
                cancelled=self._cancelled,
            )
            first_pass(context)
        except (ModelError, MemoryError, Cancelled) as error:
            self._models.remove(model)
            model.close()
            if isinstance(error, MemoryError):
                raise OutOfMemory(f"there is not enough memory for {path.name}") from error
            raise
        return context

    def _refusal(self, target: Context, devices: Sequence[str]) -> str:
        """Why the target is not exact in this place, checked on real rows; "" if it is."""
        self._progress("checking exact mode", None)
        return measured.once(lambda: exact.obstacle(target) or "", "exact", *_conditions(target, None, devices))

    def unfit(self, target: Context) -> str:
        """Why the draft asked for cannot propose for this target wherever it is placed; "" if it can.

        Only its header and vocabulary are read: nothing large is loaded in vain.
        """
        if self._request.draft is None:
            return ""
        if target.rollback_limit == 0:
            return target.model.rollback_obstacle or ""
        try:
            with Model.load(self._request.draft, vocab_only=True) as draft:
                return vocabulary.unfit(target.model, draft) or ""
        except ModelError as error:
            return str(error)

    def policy(
        self, target: Context, draft: Context | None, devices: Sequence[str], running: Costs | None = None
    ) -> tuple[AdaptivePolicy, Callable[[], None]]:
        """The policy for these costs, and what keeps for the next session what it learns.

        `devices` are the target's; `running` is what is known of one that may hold a conversation by now.
        """
        known = Measured.of(*_conditions(target, draft, devices))
        costs = known.costs or self._calibrate(target, draft, devices, running)
        policy = AdaptivePolicy(self._request.settings.speculation, costs, known.learned)

        def keep() -> None:
            if known.costs is not None or not self._request.settings.disturbed:
                known.save(costs if policy.costs.believed else None, policy.learned() if draft else None)

        if known.costs is None:
            keep()
        return policy, keep

    def pressure(self, draft: Placement) -> Callable[[], str]:
        """Whether the draft must go. One that a GPU holds in memory of its own would leave no more RAM."""
        machine = self._plan.machine
        in_ram = not draft.devices or any(machine.device(name).shares_ram for name in draft.devices)
        return Pressure(machine) if in_ram else lambda: ""

    def _finish(
        self, target: Context, draft: Context | None, step: int, rung: Rung, obstacle: str, unfit: str
    ) -> tuple[Engine, EngineInfo]:
        devices = self._devices(rung.target)
        policy, keep = self.policy(target, draft, devices)
        small = draft.model if draft else None
        pressure = self.pressure(rung.draft or Placement())
        engine = Engine(target.model, target, small, draft, policy, keep, pressure)
        info = EngineInfo(
            target=_info(target.model),
            draft=_info(small) if small else None,
            n_ctx=target.n_ctx,
            threads=target.threads,
            devices=devices,
            draft_obstacle=obstacle,
            draft_can_return=bool(obstacle) and not unfit,
            steps_down=step,
            plan=tuple(table.lines(planning.settled(self._plan, rung, self._failures))),
            thinks=engine.template.thinks,
            can_toggle_thinking=engine.template.can_toggle_thinking,
            notices=tuple(self._notices(target, rung.target, obstacle)),
        )
        return engine, info

    def _calibrate(
        self, target: Context, draft: Context | None, devices: Sequence[str], running: Costs | None
    ) -> Costs:
        self._progress("measuring this machine", None)
        if draft is None:
            return calibrate(target, None)
        alone = running or Measured.of(*_conditions(target, None, devices)).costs
        return replace(alone, draft=calibrate_draft(draft)) if alone else calibrate(target, draft)

    def _devices(self, placement: Placement) -> tuple[str, ...]:
        used = [device for device in llama.devices() if device.name in placement.devices]
        return tuple(f"{device.name} ({device.description})" for device in used) or ("CPU",)

    def _notices(self, target: Context, placement: Placement, obstacle: str) -> Iterator[str]:
        model = target.model
        if target.rollback_limit == 0 and not obstacle:
            yield f"no speculation with this model: {model.rollback_obstacle}"
        if target.rollback_limit:
            yield f"{model.path.name} is a hybrid model, which can take {target.rollback_limit} tokens back: " + (
                "no more are proposed in a round"
            )
        if target.n_ctx > model.n_ctx_train:
            yield f"{model.path.name} was trained for {model.n_ctx_train:,} tokens: beyond that its text gets worse"
        asked = (self._request.settings.type_k, self._request.settings.type_v)
        kept = (placement.type_k, placement.type_v)
        if asked[1] not in ("f16", kept[1]):
            yield f"exact mode keeps the values in the cache of {model.path.name} as {kept[1]}, not as {asked[1]}"
        if asked != ("f16", "f16") and (asked == kept or asked[0] != "f16"):
            yield f"the cache of {model.path.name} is kept as {kept[0]} and {kept[1]}, as asked: " + (
                "its replies are distributed a little differently"
            )
        yield from self._plan.absent
        # Where the draft is missing, its obstacle tells.
        if not obstacle:
            yield from self._plan.reasons
            yield from self._failures


def _conditions(target: Context, draft: Context | None, devices: Sequence[str]) -> Iterator[object]:
    """Whatever the measured costs depend on."""
    yield version("llama-cpp-python"), tuple(devices)
    for context in (target, draft):
        yield (identity(context.model.path), context.threads, context.setting) if context else None


def first_pass(context: Context) -> None:
    """The widest verification there will be, and on a GPU the longest batch: what allocates only when it is needed.

    A CPU's batches need nothing beyond the buffers that were reserved with the context.
    """
    context.decode([0] * min(N_OUTPUTS_MAX, context.n_ctx), min(N_OUTPUTS_MAX, context.n_ctx))
    context.rollback(0)
    if context.model.gpu_layers:
        context.decode([0] * min(context.n_batch, context.n_ctx), 0)
        context.rollback(0)


def _info(model: Model) -> ModelInfo:
    return ModelInfo(model.name, model.description, model.size_bytes)
