"""A target opened as a file: whose draft it gets, what is offered, and that nothing is loaded unasked."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from textual.widgets import Static

from specchat import offers, probe
from specchat.cli import main
from specchat.commands import opening
from specchat.commands.options import Options
from specchat.errors import SpecchatError
from specchat.pairs import catalog
from specchat.pairs.library import Library
from specchat.session import Session
from specchat.tui.text import as_sentence
from tests import ggufs
from tests.ggufs import Shape
from tests.terminal import on_terminal
from tests.tui import chatting


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a target, and a home without any other program's models."""
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    for variable in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "models"
    folder.mkdir()
    ggufs.write(folder / "target.gguf", shape=Shape(n_layer=6), name="the target")
    return folder


def small(path: Path, name: str, layers: int = 1) -> Path:
    return ggufs.write(path, shape=Shape(n_layer=layers), name=name)


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ask", "-n", "3", "-t", "1", *arguments, "hello"], prog_name="specchat")


def answered(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_the_smallest_that_can_is_offered_and_not_loaded(models: Path) -> None:
    ggufs.write(models / "other.gguf", ggufs.bpe(words=("sh", "or")), shape=Shape(n_layer=1))
    ggufs.write(models / "state.gguf", architecture="lfm2", shape=Shape(n_layer=2))
    small(models / "two.gguf", "two", layers=2)
    small(models / "three.gguf", "three", layers=3)
    result = ask("-m", str(models / "target.gguf"), "--json")
    assert answered(result)["draft"] is None
    assert result.stderr == ""  # a script wants none
    asked = ("-n", "3", "-t", "1", "-m", str(models / "target.gguf"), "hello")
    status, sent = on_terminal(*asked)
    assert status == 0
    assert "two.gguf" in sent
    assert "add -md auto to use it" in sent
    assert "three.gguf" not in sent
    assert "-md auto" not in on_terminal(*asked)[1]  # once is enough
    assert "-md auto" not in on_terminal("--json", *asked)[1]
    small(models / "one.gguf", "one", layers=1)
    assert "one.gguf" in on_terminal(*asked)[1]


def test_one_flag_takes_the_offer(models: Path) -> None:
    small(models / "small.gguf", "the small one")
    result = ask("-m", str(models / "target.gguf"), "-md", "auto", "--json")
    assert answered(result)["draft"] == "the small one"
    assert "small.gguf drafts for target.gguf" in result.stderr


def test_without_one_that_can_it_is_n_gram_look_up_and_said(models: Path) -> None:
    ggufs.write(models / "other.gguf", ggufs.bpe(words=("sh", "or")), shape=Shape(n_layer=1))
    none = "no smaller model here can draft for target.gguf (1 looked at)"
    assert none in opening.offering(opening.launch(Options(target=models / "target.gguf"))).remark
    for _ in range(2):  # whoever asks for one is told every time
        result = ask("-m", str(models / "target.gguf"), "-md", "auto", "--json")
        assert answered(result)["draft"] is None
        assert none in result.stderr
        assert "n-gram" in result.stderr


def test_nothing_is_said_where_there_is_nothing_to_look_at_or_nobody_asked(models: Path) -> None:
    assert ask("-m", str(models / "target.gguf")).stderr == ""
    small(models / "small.gguf", "small")
    for mode in ("ngram", "off"):
        assert ask("-m", str(models / "target.gguf"), "--speculation", mode).stderr == ""


def test_a_draft_that_memory_does_not_hold_is_left_out_and_said(models: Path) -> None:
    small(models / "small.gguf", "small", layers=5)
    target = models / "target.gguf"
    launch = opening.launch(Options(target=target, draft=Path("auto")))
    assert launch.draft == models / "small.gguf"
    assert not launch.draft_required
    # Room for the target alone.
    plain = CliRunner().invoke(main, ["plan", "-m", str(target), "-c", "512"], prog_name="specchat")
    assert plain.exit_code == 0
    result = ask("-m", str(target), "-md", "auto", "-c", "512", "--json", "--memory-limit", "3MiB")
    document = answered(result)
    assert document["draft"] is None
    assert "memory does not hold the draft model too" in str(document["draft_obstacle"])


def test_the_target_of_an_installed_pair_gets_that_pairs_draft_and_sampling(models: Path, specchat_home: Path) -> None:
    drafts = models / "drafts"
    drafts.mkdir()
    small(drafts / "own.gguf", "its own draft", layers=2)
    small(models / "smaller.gguf", "smaller", layers=1)
    entries = [
        f'[files.t]\npath = "{models / "target.gguf"}"\n[files.d]\npath = "{drafts / "own.gguf"}"\n',
        '[pairs.both]\ntarget = "t"\ndraft = "d"\nsampling = { temperature = 0.3 }\n',
    ]
    (specchat_home / "models.toml").write_text("".join(entries))
    known, library = catalog.load(), Library.default()
    for file in ("t", "d"):
        list(library.verify(known.files[file]))
    link = models / "link.gguf"
    link.symlink_to(models / "target.gguf")
    for name in ("target.gguf", "link.gguf"):
        launch = opening.launch(Options(target=models / name))
        assert launch.draft == drafts / "own.gguf"
        assert launch.options.sampling.temperature == 0.3
        assert "the pair both" in launch.remark
    named = opening.launch(Options(target=models / "target.gguf", draft=models / "smaller.gguf"))
    assert (named.draft, named.draft_required, named.remark) == (models / "smaller.gguf", True, "")


def test_llama_cpp_is_asked_once_for_the_same_files(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    drafts = probe.drafts

    def counting(target: Path, candidates: list[Path], *, first: bool = False) -> probe.Drafts:
        asked.append(candidates)
        return drafts(target, candidates, first=first)

    monkeypatch.setattr(probe, "drafts", counting)
    small(models / "small.gguf", "small")
    known, library = catalog.load(), Library.default()
    for _ in range(2):
        found = offers.smallest(known, library, models / "target.gguf")
        assert found.draft is not None
        assert found.draft.path == models / "small.gguf"
    assert len(asked) == 1
    ggufs.write(models / "aaa.gguf", ggufs.bpe(words=("qj",)), shape=Shape(n_layer=1))
    assert offers.smallest(known, library, models / "target.gguf").looked_at == 2
    assert len(asked) == 2


def test_a_damaged_neighbour_is_passed_over(models: Path) -> None:
    ggufs.truncated(models / "damaged.gguf", models / "target.gguf", 3000)
    (models / "text.gguf").write_text("no model")
    small(models / "small.gguf", "small", layers=2)
    found = offers.smallest(catalog.load(), Library.default(), models / "target.gguf")
    assert found.draft is not None
    assert found.draft.name == "small.gguf"


def test_the_screen_is_told_among_the_engines_notices(models: Path) -> None:
    small(models / "small.gguf", "small")
    session = Session(opening.offering(opening.launch(Options(target=models / "target.gguf", threads=1))))
    assert session.info is None
    try:
        list(session.load())
        assert session.info is not None
        assert "add -md auto" in session.info.notices[0]
    finally:
        session.close()


@pytest.mark.parametrize("small_ones", [(), ("small.gguf",), ("small.gguf", "smaller.gguf")])
@pytest.mark.parametrize("draft", [None, Path("auto"), Path("small.gguf")])
async def test_in_a_running_chat_a_file_is_opened_as_on_the_command_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, small_ones: tuple[str, ...], draft: Path | None
) -> None:
    monkeypatch.chdir(models)
    for layers, name in enumerate(reversed(small_ones), start=1):
        small(models / name, name, layers)
    if draft == Path("small.gguf") and not small_ones:
        with pytest.raises(SpecchatError, match="no file"):
            opening.instead(Options(), "target.gguf", draft)
        return
    started = opening.offering(opening.launch(Options(draft=draft), "target.gguf"))
    assert opening.instead(Options(), "target.gguf", draft) == started
    if draft != Path("small.gguf"):  # -md auto holds for whatever is opened, a draft's file for its target
        assert opening.instead(Options(draft=draft), "target.gguf") == started
    async with chatting(opener=partial(opening.instead, Options())) as chat:
        await chat.say(f"/model target.gguf -md {draft}" if draft else "/model target.gguf", wait=False)
        await chat.until(lambda: chat.idle and chat.session.launch.name == "target.gguf")
        assert chat.session.launch.draft == started.draft
        said = " ".join(str(notice.render()) for notice in chat.screen.query(".notice").results(Static))
        assert as_sentence(started.remark) in said
        assert bool(started.remark) == ((draft is None and bool(small_ones)) or draft == Path("auto"))
