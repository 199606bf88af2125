"""Loading real (tiny) models: what is told, what costs only the draft, what fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specchat import locations
from specchat.engine import exact as exact_mode
from specchat.engine import remote
from specchat.engine.cache import Logits
from specchat.engine.chat import Engine
from specchat.engine.llama import Context, Model, ModelError, OutOfMemory
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Finished, Generated, Message, Notice, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.memory import planning
from specchat.memory.planning import Placement, Rung
from specchat.worker import loader, machine
from specchat.worker.protocol import EngineInfo, Load, LoadSettings
from tests import ggufs


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny models."""
    folder = tmp_path_factory.mktemp("models")
    vocabulary = ggufs.bpe()
    ggufs.write(folder / "target.gguf", vocabulary, name="tiny target")
    ggufs.write(folder / "draft.gguf", vocabulary, shape=ggufs.Shape(n_layer=1), name="tiny draft")
    ggufs.write(folder / "other.gguf", ggufs.bpe(words=("sh", "or", "shor", "Ġz")))
    ggufs.write(folder / "recurrent.gguf", vocabulary, architecture="mamba")
    ggufs.write(folder / "hybrid.gguf", vocabulary, architecture="lfm2")
    ggufs.write(folder / "long.gguf", vocabulary, shape=ggufs.Shape(n_ctx_train=131072))
    ggufs.write(folder / "wide.gguf", vocabulary, shape=ggufs.Shape(n_embd=128))
    ggufs.truncated(folder / "damaged.gguf", folder / "target.gguf", -1000)
    return folder


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    """Engines to be closed after the test."""
    opened: list[Engine] = []
    yield opened
    for engine in opened:
        engine.close()


@pytest.fixture
def load(files: Path, engines: list[Engine]) -> Any:
    """Load by file names; answers with what the parent would be told."""

    def call(target: str, draft: str | None = None, required: bool = False, **settings: Any) -> EngineInfo:
        request = Load(
            1,
            files / f"{target}.gguf",
            files / f"{draft}.gguf" if draft else None,
            required,
            LoadSettings(**({"threads": 1} | settings)),
        )
        engine, info = loader.load_engine(request, lambda _stage, _fraction: None, lambda: False)
        engines.append(engine)
        return info

    return call


def reply(engine: Engine) -> list[Generated]:
    options = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=12)
    events = list(engine.reply([Message("user", "hello")], options))
    assert isinstance(events[-1], Finished)
    return [event for event in events if isinstance(event, Generated)]


def text(events: list[Generated]) -> str:
    return "".join(piece.text for event in events for piece in event.pieces)


# ---- what is told


def test_a_pair_that_fits_is_loaded_and_described(load: Any, engines: list[Engine]) -> None:
    info = load("target", "draft")
    assert (info.target.name, info.draft.name) == ("tiny target", "tiny draft")
    assert info.target.size_bytes > info.draft.size_bytes > 0
    assert (info.draft_obstacle, info.notices, info.threads, info.devices) == ("", (), 1, ("CPU",))
    engines[0].speculation = Speculation(Mode.DRAFT, 3)
    assert "draft" in {event.round.drafter for event in reply(engines[0])}


def test_progress_is_told_for_both_models(files: Path, engines: list[Engine]) -> None:
    told: list[tuple[str, float | None]] = []
    request = Load(1, files / "target.gguf", files / "draft.gguf")
    engine, _ = loader.load_engine(request, lambda stage, fraction: told.append((stage, fraction)), lambda: False)
    engines.append(engine)
    assert [stage for stage, fraction in told if fraction == 1.0] == ["loading the target", "loading the draft"]


def test_the_context_is_as_asked_else_32768_or_the_models_own(load: Any) -> None:
    assert load("target").n_ctx == ggufs.Shape().n_ctx_train < 8192
    assert load("long").n_ctx == 32768  # there is room for it
    assert load("long", n_ctx=10_000).n_ctx == 10_000
    beyond = load("target", n_ctx=1024)
    assert beyond.n_ctx == 1024
    assert "trained for 512 tokens" in beyond.notices[0]


def test_what_llama_cpp_says_goes_to_the_log(files: Path, engines: list[Engine], tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    engine, _ = loader.load_engine(Load(1, files / "target.gguf", log=log), lambda *_: None, lambda: False)
    engines.append(engine)
    assert "tiny target" in log.read_text()


# ---- what costs only the draft

UNFIT = {
    "other": "cannot draft for",
    "recurrent": "recurrent",
    "hybrid": "hybrid",
    "damaged": "incomplete or damaged",
    "none": "there is no file",
}


@pytest.mark.parametrize("draft", UNFIT)
def test_a_draft_that_cannot_be_used_leaves_the_target_and_its_reason(
    load: Any, engines: list[Engine], draft: str
) -> None:
    info = load("target", draft)
    assert info.draft is None
    assert UNFIT[draft] in info.draft_obstacle
    assert {event.round.drafter for event in reply(engines[0])} <= {"plain", "ngram"}


@pytest.mark.parametrize("draft", UNFIT)
def test_a_draft_that_the_user_named_is_an_error_and_nothing_stays_loaded(
    load: Any, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Model] = []
    load_model = Model.load

    def watched(path: Path, **options: Any) -> Model:
        opened.append(load_model(path, **options))
        return opened[-1]

    monkeypatch.setattr(Model, "load", watched)
    with pytest.raises(ModelError, match=UNFIT[draft]):
        load("target", draft, required=True)
    assert all(model.handle is None for model in opened)


@pytest.mark.parametrize("target", ["recurrent", "hybrid"])
def test_a_target_that_cannot_roll_back_decodes_plainly_and_says_so(
    load: Any, engines: list[Engine], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SNAPSHOTS", 0)  # as where llama.cpp keeps none of a hybrid model
    opened: list[Path] = []
    load_model = Model.load

    def watched(path: Path, **options: Any) -> Model:
        opened.append(path)
        return load_model(path, **options)

    monkeypatch.setattr(Model, "load", watched)
    assert target in load(target, "draft").draft_obstacle
    assert [path.stem for path in opened] == [target]  # the draft was not even looked at
    alone = load(target)
    assert alone.draft_obstacle == ""
    assert "no speculation with this model" in alone.notices[0]
    for engine in engines:
        assert {event.round.drafter for event in reply(engine)} == {"plain"}


@pytest.mark.parametrize("mode", [Mode.DRAFT, Mode.NGRAM, Mode.AUTO])
@pytest.mark.parametrize("depth", [2, 4, 9, None])
def test_a_hybrid_target_speculates_as_deep_as_it_can_take_back(
    load: Any, engines: list[Engine], mode: Mode, depth: int | None
) -> None:
    info = load("hybrid", "draft")
    assert info.draft is not None
    assert info.draft_obstacle == ""
    assert any("can take 4 tokens back" in notice for notice in info.notices)
    engine = engines[0]
    assert engine.target_context.rollback_limit == planning.SNAPSHOTS == 4
    engine.speculation = Speculation(Mode.OFF)
    plain = text(reply(engine))
    engine.speculation = Speculation(mode, depth)
    for _ in range(2):
        events = reply(engine)
        assert text(events) == plain
        assert max(event.round.proposed for event in events) <= min(4, depth or 4)
    if mode is Mode.DRAFT:
        assert "draft" in {event.round.drafter for event in events}


def test_a_hybrid_targets_snapshots_are_in_the_plan(files: Path) -> None:
    request = Load(1, files / "hybrid.gguf", files / "draft.gguf", settings=LoadSettings(threads=1))
    plan, _ = loader.planned(request)
    assert plan.rungs[0].target.snapshots == 4
    state = sum(layer.state for layer in plan.wish.target.layers)
    kept = sum(part.bytes for part in plan.parts if part.role == "target" and "cache" in part.what)
    without = replace(plan.rungs[0].target, snapshots=0)
    less = planning.parts(plan.wish, plan.machine, Rung("", without, Placement()), plan.n_ctx)
    assert kept - sum(part.bytes for part in less if part.role == "target" and "cache" in part.what) == 4 * state > 0


def test_exact_mode_of_a_hybrid_target_is_refused_and_the_reason_told(load: Any) -> None:
    assert any("exact mode is off" in notice and "hybrid" in notice for notice in load("hybrid", exact=True).notices)


# ---- when memory does not suffice

STAGES = ("weights", "cache", "first pass")


def fail(monkeypatch: pytest.MonkeyPatch, stage: str, fails: Callable[[Model | Path], bool]) -> None:
    """Let an allocation fail at that stage for whatever `fails` says."""
    load_model, make_context, decode = Model.load, Context.__init__, Context.decode

    def loading(path: Path, **options: Any) -> Model:
        if stage == "weights" and not options.get("vocab_only") and fails(path):
            raise OutOfMemory(f"there is not enough memory to load {path.name}")
        return load_model(path, **options)

    def making(context: Context, model: Model, **options: Any) -> None:
        if stage == "cache" and fails(model):
            raise OutOfMemory("there is not enough memory for a context")
        make_context(context, model, **options)

    def decoding(context: Context, tokens: Sequence[int], n_logits: int) -> Logits:
        if stage == "first pass" and fails(context.model):
            raise OutOfMemory("there was not enough memory to compute")
        return decode(context, tokens, n_logits)

    monkeypatch.setattr(Model, "load", loading)
    monkeypatch.setattr(Context, "__init__", making)
    monkeypatch.setattr(Context, "decode", decoding)


def named(name: str) -> Callable[[Model | Path], bool]:
    return lambda of: (of.path if isinstance(of, Model) else of).stem == name


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_no_memory_for_the_draft_leaves_the_target(
    load: Any, engines: list[Engine], stage: str, required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, stage, named("draft"))
    info = load("target", "draft", required=required)
    assert info.draft is None
    assert "not enough memory" in info.draft_obstacle
    assert info.draft_can_return
    assert info.steps_down == 1
    assert info.plan[0].startswith("the target alone in RAM")
    assert f"both models in RAM: {info.draft_obstacle}" in info.plan
    assert {event.round.drafter for event in reply(engines[0])} <= {"plain", "ngram"}


@pytest.mark.parametrize("stage", STAGES)
def test_no_memory_for_the_target_is_an_error_with_everything_given_back(
    load: Any, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, stage, named("target"))
    opened: list[Model] = []
    load_model = Model.load

    def watched(path: Path, **options: Any) -> Model:
        opened.append(load_model(path, **options))
        return opened[-1]

    monkeypatch.setattr(Model, "load", watched)
    with pytest.raises(OutOfMemory, match="not enough memory"):
        load("target", "draft")
    assert all(model.handle is None for model in opened)


def test_attention_that_takes_less_memory_keeps_the_target_alive(
    load: Any, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scores of a whole batch may be what there is no room for, whatever the plan believed."""
    make_context = Context.__init__

    def making(context: Context, model: Model, **options: Any) -> None:
        if options["flash_attention"] is False:
            raise OutOfMemory("there is not enough memory for a context")
        make_context(context, model, **options)

    monkeypatch.setattr(Context, "__init__", making)
    for draft in (None, "draft"):
        info = load("target", draft)
        assert info.plan[0].startswith("the target alone in RAM")
        assert ("not enough memory" in info.draft_obstacle) == bool(draft)
        assert info.draft_can_return == bool(draft)
        assert reply(engines[-1])


@pytest.mark.parametrize("stage", STAGES)
def test_a_draft_comes_back_beside_the_running_target_when_there_is_room(
    files: Path, load: Any, engines: list[Engine], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail(patch, stage, named("draft"))
        info = load("target", "draft")
        request = Load(1, files / "target.gguf", files / "draft.gguf", settings=LoadSettings(threads=1))
        still = loader.restore_draft(engines[0], info, request, lambda *_: None, lambda: False)
        assert still.draft is None
        assert "not enough memory" in still.draft_obstacle
        assert still.draft_can_return
    first = reply(engines[0])
    held = len(engines[0].target_context.tokens)
    told: list[str] = []
    back = loader.restore_draft(engines[0], info, request, lambda stage, _: told.append(stage), lambda: False)
    assert back.draft is not None
    assert (back.draft_obstacle, back.draft_can_return) == ("", False)
    assert "came back" in back.plan[-1]
    assert "loading the draft" in told
    assert "loading the target" not in told
    assert len(engines[0].target_context.tokens) == held  # the conversation is still in the cache
    engines[0].speculation = Speculation(Mode.DRAFT, 3)
    again = reply(engines[0])
    assert "draft" in {event.round.drafter for event in again}
    assert text(again) == text(first)


@pytest.mark.parametrize("settings", [{}, {"type_k": "q8_0", "type_v": "q8_0"}])
@pytest.mark.parametrize("kept", [True, False])
def test_a_draft_that_comes_back_leaves_the_conversation_alone(
    files: Path, load: Any, engines: list[Engine], settings: Any, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that is full has no room to be timed in, and would have to read everything again."""
    with monkeypatch.context() as patch:
        fail(patch, "cache", named("draft"))
        info = load("wide", "draft", n_ctx=256, **settings)
    if not kept:  # a full disk, or one that is read only
        shutil.rmtree(locations.cache_dir() / "measured")
    engine = engines[0]
    reply(engine)
    target = engine.target_context
    target.decode([5] * (target.n_ctx - len(target.tokens)), 0)
    full = list(target.tokens)
    request = Load(
        1, files / "wide.gguf", files / "draft.gguf", settings=LoadSettings(threads=1, n_ctx=256, **settings)
    )
    assert loader.restore_draft(engine, info, request, lambda *_: None, lambda: False).draft is not None
    assert list(target.tokens) == full


def test_what_was_learned_of_a_pair_is_known_however_its_draft_came(
    files: Path, load: Any, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"type_k": "q8_0", "type_v": "q8_0"}
    load("wide", "draft", **settings)
    policies: list[Any] = [engines[0]._policy]
    engines[0].speculation = Speculation(Mode.DRAFT, 3)
    reply(engines[0])
    with monkeypatch.context() as patch:
        fail(patch, "cache", named("draft"))
        info = load("wide", "draft", **settings)
    request = Load(1, files / "wide.gguf", files / "draft.gguf", settings=LoadSettings(threads=1, **settings))
    loader.restore_draft(engines[1], info, request, lambda *_: None, lambda: False)
    policies.append(engines[1]._policy)
    before, after = (policy.learned().trials for policy in policies)
    assert after == pytest.approx(before)
    assert after > 0


def test_a_draft_comes_back_only_within_what_the_target_left_of_the_limit(
    files: Path, load: Any, engines: list[Engine]
) -> None:
    target, draft = (sum(planning.use(parts).values()) for parts in split_parts(files))
    info = load("target", "draft", memory_limit=target + draft - 1)
    assert info.draft is None
    context = engines[0].target_context
    wish, rung = planning.Wish(loader.shape(files / "target.gguf")), Rung("", Placement(*context.setting))
    taken = sum(part.bytes for part in planning.parts(wish, machine.read(), rung, context.n_ctx))
    for more, comes in ((-1, False), (0, True)):
        limited = LoadSettings(threads=1, memory_limit=taken + draft + more)
        request = Load(1, files / "target.gguf", files / "draft.gguf", settings=limited)
        back = loader.restore_draft(engines[0], info, request, lambda *_: None, lambda: False)
        assert (back.draft is not None) == comes
        assert comes or "memory" in back.draft_obstacle


def test_a_draft_that_cannot_propose_does_not_come_back(files: Path, load: Any, engines: list[Engine]) -> None:
    info = load("target", "other")
    assert not info.draft_can_return
    request = Load(1, files / "target.gguf", files / "other.gguf")
    assert loader.restore_draft(engines[0], info, request, lambda *_: None, lambda: False).draft is None


def test_the_draft_is_released_when_memory_gets_short_and_the_reply_goes_on(load: Any, engines: list[Engine]) -> None:
    load("target", "draft")
    engine = engines[0]
    engine.speculation = Speculation(Mode.DRAFT, 2)
    whole = text(reply(engine))
    asked: list[int] = []

    def short() -> str:
        asked.append(1)
        return "memory ran short" if len(asked) == 4 else ""

    engine._pressure = short
    options = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=12)
    events = list(engine.reply([Message("user", "hello")], options))
    drafters = [event.round.drafter for event in events if isinstance(event, Generated)]
    assert [event.text for event in events if isinstance(event, Notice)] == ["memory ran short"]
    assert drafters[0] == "draft"
    assert drafters[-1] != "draft"
    assert not engine.has_draft
    assert text([event for event in events if isinstance(event, Generated)]) == whole
    assert len(asked) == 4  # nothing more to release


def test_a_draft_released_while_idle_is_told_of_in_the_next_reply(load: Any, engines: list[Engine]) -> None:
    load("target", "draft")
    engine = engines[0]
    engine._pressure = lambda: "memory ran short"
    assert engine.relieve()
    assert not engine.relieve()
    events = list(engine.reply([Message("user", "hello")], ReplyOptions(max_tokens=2)))
    assert events[0] == Notice("memory ran short")


def test_a_reply_needs_no_code_that_was_not_there_when_its_models_were_loaded(files: Path) -> None:
    """They may have left no memory to load any into: numpy's random numbers failed so, in the first reply."""
    script = """
import sys
from pathlib import Path
from specchat.engine.replies import Message, ReplyOptions
from specchat.worker import loader, process
from specchat.worker.protocol import Load
request = Load(1, Path(sys.argv[1]), Path(sys.argv[2]))
engine, _ = loader.load_engine(request, lambda *_: None, lambda: False)
before = set(sys.modules)
events = list(engine.reply([Message("user", "hello")], ReplyOptions(max_tokens=8)))
print(len(events) > 2, *(set(sys.modules) - before))
"""
    command = [sys.executable, "-c", script, str(files / "target.gguf"), str(files / "draft.gguf")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["True"]


def test_rungs_that_ended_a_process_are_left_out(files: Path, engines: list[Engine]) -> None:
    for steps, draft in ((0, True), (1, False), (7, False)):
        request = Load(1, files / "target.gguf", files / "draft.gguf", steps_down=steps)
        engine, info = loader.load_engine(request, lambda *_: None, lambda: False)
        engines.append(engine)
        assert (info.draft is not None, info.steps_down) == (draft, min(steps, 2))
        assert draft or "want of memory" in info.draft_obstacle


def test_a_limit_costs_the_draft_and_says_so(files: Path, load: Any) -> None:
    target, draft = (sum(planning.use(parts).values()) for parts in split_parts(files))
    assert load("target", "draft", memory_limit=target + draft).draft is not None
    info = load("target", "draft", memory_limit=target + draft - 1)
    assert info.draft is None
    assert "too little memory" in info.draft_obstacle
    assert "memory does not hold the draft model too" in info.draft_obstacle
    assert "both models in RAM: " in "\n".join(info.plan)
    with pytest.raises(OutOfMemory, match="more memory"):
        load("target", "draft", memory_limit=target // 2)


def split_parts(files: Path) -> tuple[list[planning.Part], list[planning.Part]]:
    """What the plan gives the target, and the draft, where they are not to take much."""
    request = Load(1, files / "target.gguf", files / "draft.gguf")
    plan, _ = loader.make_plan(request, machine.read())
    small = Rung("", Placement(), Placement())
    parts = list(planning.parts(plan.wish, plan.machine, small, plan.n_ctx))
    target, draft = ([part for part in parts if part.role == role] for role in ("target", "draft"))
    return target, draft


def test_devices_that_are_not_there_are_refused(load: Any) -> None:
    with pytest.raises(ModelError, match="there is no device CUDA7 here; there is CPU"):
        load("target", devices=("CUDA7",))
    assert load("target", devices=("CPU",)).devices == ("CPU",)


def test_a_cache_type_that_was_asked_for_is_used_and_said(load: Any, engines: list[Engine]) -> None:
    info = load("wide", type_k="q8_0", type_v="q8_0")
    assert "q8_0" in "\n".join(info.plan)
    assert "distributed" in info.notices[0]
    assert reply(engines[0])


@pytest.mark.parametrize("type_k", ["f16", "q8_0"])
@pytest.mark.parametrize("type_v", ["f16", "bf16", "f32", "q8_0"])
@pytest.mark.parametrize("exact", [True, False])
def test_what_is_said_of_the_cache_is_what_it_is(
    load: Any, type_k: str, type_v: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact mode has the values as it needs them, whatever was asked."""
    monkeypatch.setattr(exact_mode, "obstacle", lambda _: None)
    info = load("wide", type_k=type_k, type_v=type_v, exact=exact)
    real_v = "bf16" if exact else type_v
    said = "; ".join(info.notices)
    assert (f"as {type_k} and {real_v}" in said) == (type_k != "f16" or (real_v == type_v != "f16"))
    assert (f"as {real_v}, not as {type_v}" in said) == (real_v != type_v != "f16")
    assert f"{type_k} and {real_v}" in "; ".join(info.plan) or type_k == real_v


# ---- rungs


def test_the_next_placement_is_tried_when_one_does_not_hold(
    load: Any, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible, possible = Placement(type_k="q9_9"), Placement()
    ladder = (Rung("a", impossible, possible), Rung("b", possible, impossible), Rung("c", possible, possible))
    make_plan = loader.make_plan

    def planned(*arguments: Any) -> Any:
        plan, obstacle = make_plan(*arguments)
        return replace(plan, rungs=ladder), obstacle

    monkeypatch.setattr(loader, "make_plan", planned)
    info = load("target", "draft")
    assert info.draft is not None
    assert info.steps_down == 2
    assert info.plan[0].startswith("c; ")
    assert [notice[:3] for notice in info.notices] == ["a: ", "b: "]
    assert reply(engines[0])


def test_the_exact_mode_loads(load: Any, engines: list[Engine]) -> None:
    load("target", exact=True)
    assert reply(engines[0])


@pytest.mark.parametrize(("target", "said"), [("none", "there is no file"), ("damaged", "incomplete or damaged")])
def test_a_target_that_cannot_be_loaded_is_one_sentence(load: Any, target: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load(target, "draft")


@pytest.mark.parametrize("with_draft", [True, False])
def test_what_was_asked_for_and_is_not_here_is_a_sentence_of_its_own(
    files: Path, load: Any, monkeypatch: pytest.MonkeyPatch, with_draft: bool
) -> None:
    away, no_gpu = "no machine answers at there:50052", "no layer is placed on a GPU"
    monkeypatch.setattr(remote, "connect", lambda _: (away,))
    monkeypatch.setattr(machine, "devices", lambda: iter(()))
    target, draft = (sum(planning.use(parts).values()) for parts in split_parts(files))
    limit = target + draft - (not with_draft)
    info = load("target", "draft", memory_limit=limit, rpc=("there:50052",), gpu_layers=5)
    assert (info.draft is not None) == with_draft
    for sentence in (away, no_gpu):
        assert sum(notice.startswith(sentence) for notice in info.notices) == 1
        assert sum(line.startswith(sentence) for line in info.plan) == 1
        assert sentence not in info.draft_obstacle
    with pytest.raises(OutOfMemory, match=away):
        load("target", "draft", memory_limit=target // 2, rpc=("there:50052",))
