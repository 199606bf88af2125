"""Loading real (tiny) models: what is told, what costs only the draft, what fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specchat.engine.chat import Engine, Finished, Generated, Message, ReplyOptions
from specchat.engine.llama import Context, Model, ModelError
from specchat.engine.policy import Mode, Speculation
from specchat.engine.sampling import SamplingSettings
from specchat.worker import loader
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


def test_the_context_is_as_asked_else_8192_or_the_models_own(load: Any) -> None:
    assert load("target").n_ctx == ggufs.Shape().n_ctx_train < 8192
    assert load("long").n_ctx == 8192
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
    closed: list[str] = []
    close = Model.close

    def watched(model: Model) -> None:
        closed.append(model.path.stem)
        close(model)

    monkeypatch.setattr(Model, "close", watched)
    with pytest.raises(ModelError, match=UNFIT[draft]):
        load("target", draft, required=True)
    assert "target" in closed


@pytest.mark.parametrize("target", ["recurrent", "hybrid"])
def test_a_target_that_cannot_roll_back_decodes_plainly_and_says_so(
    load: Any, engines: list[Engine], target: str
) -> None:
    assert target in load(target, "draft").draft_obstacle
    alone = load(target)
    assert alone.draft_obstacle == ""
    assert "no speculation with this model" in alone.notices[0]
    for engine in engines:
        assert {event.round.drafter for event in reply(engine)} == {"plain"}


@pytest.mark.parametrize("stage", ["weights", "cache"])
def test_no_memory_for_the_draft_leaves_the_target(
    load: Any, engines: list[Engine], stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_model, make_context = Model.load, Context.__init__

    def without_memory(path: Path, **options: Any) -> Model:
        if path.stem == "draft" and not options.get("vocab_only"):
            raise ModelError("there is not enough memory to load draft.gguf")
        return load_model(path, **options)

    def without_room(context: Context, model: Model, **options: Any) -> None:
        if model.path.stem == "draft":
            raise ModelError("there is not enough memory for a context")
        make_context(context, model, **options)

    if stage == "weights":
        monkeypatch.setattr(Model, "load", without_memory)
    else:
        monkeypatch.setattr(Context, "__init__", without_room)
    info = load("target", "draft")
    assert info.draft is None
    assert "not enough memory" in info.draft_obstacle
    assert reply(engines[0])
    with pytest.raises(ModelError, match="not enough memory"):
        load("target", "draft", required=True)


# ---- rungs


def test_rungs_go_from_both_models_to_the_target_alone() -> None:
    request = Load(1, Path("t"), Path("d"), settings=LoadSettings(gpu_layers=7))
    both, alone = loader.rungs(request)
    assert both.draft is not None
    assert (both.target, both.draft.gpu_layers, alone.target, alone.draft) == (alone.target, 7, both.target, None)
    assert loader.rungs(replace(request, draft_required=True)) == (both,)
    assert loader.rungs(replace(request, draft=None)) == (alone,)


def test_the_next_placement_is_tried_when_one_does_not_hold(
    load: Any, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible, possible = loader.Placement(type_k="q9_9"), loader.Placement()
    ladder = (loader.Rung(impossible, possible), loader.Rung(possible, impossible), loader.Rung(possible, possible))
    monkeypatch.setattr(loader, "rungs", lambda _request: ladder)
    info = load("target", "draft")
    assert info.draft is not None
    assert reply(engines[0])


def test_the_exact_mode_asks_for_one_path_at_every_width() -> None:
    usual, exact = (loader.rungs(Load(1, Path("t"), settings=LoadSettings(exact=e)))[0].target for e in (False, True))
    assert (usual.type_k, usual.type_v, usual.flash_attention) == ("f16", "f16", None)
    assert (exact.type_k, exact.type_v, exact.flash_attention) == ("f16", "bf16", True)


def test_the_exact_mode_loads(load: Any, engines: list[Engine]) -> None:
    load("target", exact=True)
    assert reply(engines[0])


@pytest.mark.parametrize(("target", "said"), [("none", "there is no file"), ("damaged", "incomplete or damaged")])
def test_a_target_that_cannot_be_loaded_is_one_sentence(load: Any, target: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load(target, "draft")
