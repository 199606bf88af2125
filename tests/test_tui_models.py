"""Models and settings changed while the chat runs."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import OptionList

from specchat import locations
from specchat.engine.policy import Mode
from specchat.engine.replies import Event, Finished, Message
from specchat.errors import SpecchatError
from specchat.session import Launch
from specchat.tui.app import open_store
from specchat.tui.screens import models
from specchat.tui.screens.models import ModelsScreen
from specchat.tui.screens.question import Question
from specchat.tuning import Tuning
from specchat.worker.client import EngineClosed, EngineError
from specchat.worker.protocol import Loading
from tests.scripted_client import INFO, ScriptedClient, generated, until
from tests.tui import HOSTILE, chatting


class Loader(ScriptedClient):
    """Remembers what it loaded; what is called "bad" it refuses, what is called "slow" it loads until it is closed."""

    targets: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.targets = []
        self.shut = threading.Event()

    def close(self) -> None:
        super().close()
        self.shut.set()

    def load(self, target: Path, *args: Any, **options: Any) -> Generator[Loading, None, None]:
        self.targets.append(target.name)
        self.shut.clear()
        if target.name.startswith("slow"):
            yield Loading(0, "reading")
            self.shut.wait(10)
            raise EngineClosed("the engine was closed")
        if target.name.startswith("bad"):
            raise EngineError(f"{target.name} is not a GGUF file")
        yield from super().load(target, *args, **options)


def opener(name: str, draft: Path | None = None) -> Launch:
    if name == "missing":
        raise SpecchatError("missing is not installed: `specchat pull missing` fetches it")
    launch = Launch(name, Path(f"{name}.gguf"), draft)
    return replace(launch, options=replace(launch.options, sampling=replace(launch.options.sampling, temperature=0.6)))


# ---- /model


async def test_another_pair_takes_over_and_the_conversation_stays() -> None:
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        await chat.say("hi")
        await chat.say("/model other")
        await chat.shows("other writes from here on", "about 3 ")
        assert client.targets == ["target.gguf", "other.gguf"]
        assert client.closed
        await chat.say("again")
        assert [message.content for message in client.asked[-1]] == ["hi", "Hello there.", "again"]
        assert client.options[-1].sampling.temperature == 0.6
        store, leaf = chat.screen.journal.store, chat.screen.journal.leaf
        assert leaf is not None
        assert store.message(leaf).pair == "other"


async def test_a_pair_that_cannot_be_loaded_brings_the_old_one_back() -> None:
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        await chat.say("hi")
        await chat.say("/model bad")
        await chat.shows("bad.gguf is not a GGUF file. demo is loaded again.")
        assert client.targets == ["target.gguf", "bad.gguf", "target.gguf"]
        assert chat.session.launch.name == "demo"
        await chat.say("again")
        assert len(client.asked) == 2
        await chat.say("/model demo")  # which opens another file here
        await chat.shows("demo writes from here on")


@pytest.mark.parametrize("asked", [["slow", "bad"], ["slow", "slow2", "bad"], ["bad", "slow", "bad", "bad2"]])
async def test_others_that_fail_while_some_are_still_loading_bring_back_those_that_were_there(asked: list[str]) -> None:
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        for name in asked:
            await chat.say(f"/model {name}", wait=False)
            await chat.until(partial(client.targets.__contains__, f"{name}.gguf"))
        await chat.shows(f"{asked[-1]}.gguf is not a GGUF file. demo is loaded again.")
        await chat.until(lambda: chat.idle)
        assert client.targets[-1] == "target.gguf"
        assert chat.session.info is not None
        assert chat.session.launch.name == "demo"
        await chat.say("hi")
        assert client.targets[-1] == "target.gguf"


@pytest.mark.parametrize("message", [True, False])
async def test_others_that_fail_instead_of_the_first_ones_have_the_first_ones_loaded(message: bool) -> None:
    gate = threading.Event()
    client = Loader(load_gate=gate)
    async with chatting(client, opener=opener, loaded=False) as chat:
        if message:
            gate.set()
            await chat.until(lambda: chat.idle)
            await chat.say("/unload")
            gate.clear()
            await chat.say("hi", wait=False)
            await chat.until(lambda: len(client.targets) == 2)
        await chat.say("/model bad", wait=False)
        if message:
            await chat.until(lambda: isinstance(chat.app.screen, Question))
            await chat.pilot.press("enter")
        gate.set()
        await chat.shows("bad.gguf is not a GGUF file. demo is loaded again.")
        assert client.targets[-2:] == ["bad.gguf", "target.gguf"]


async def test_models_that_were_unloaded_stay_so_after_others_failed() -> None:
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        await chat.say("/model slow", wait=False)
        await chat.until(lambda: "slow.gguf" in client.targets)
        await chat.say("/unload")
        await chat.say("/model bad")
        await chat.shows("bad.gguf is not a GGUF file.")
        assert client.targets == ["target.gguf", "slow.gguf", "bad.gguf"]
        assert chat.session.launch.name == "demo"


async def test_what_is_not_installed_or_loaded_already_is_said_in_place() -> None:
    async with chatting(Loader(), opener=opener) as chat:
        await chat.say("/model missing")
        await chat.until(lambda: "specchat pull missing" in chat.note)
        assert chat.box.text == "/model missing"
        await chat.pilot.press("ctrl+c")
        await chat.say("/model other")
        await chat.until(lambda: chat.idle and chat.session.launch.name == "other")
        await chat.say("/model other")
        await chat.until(lambda: "loaded already: other" in chat.note)
        assert chat.client.loads == 2


async def test_it_asks_first_while_a_reply_is_written() -> None:
    client = Loader(until(threading.Event(), "some ", "more"))
    async with chatting(client, opener=opener) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("some")
        await chat.say("/model other", wait=False)
        await chat.shows("A reply is being written", "Stop it and load other")
        await chat.pilot.press("escape")
        await chat.pilot.pause()
        assert not chat.idle
        assert client.targets == ["target.gguf"]
        await chat.say("/model other", wait=False)
        await chat.until(lambda: isinstance(chat.app.screen, Question))
        await chat.pilot.press("enter")
        await chat.shows("other writes from here on", "stopped")
        assert chat.session.messages[-1].content == "some "


async def test_another_pair_instead_of_one_that_is_still_loading() -> None:
    gate = threading.Event()
    client = Loader(load_gate=gate)
    async with chatting(client, opener=opener, loaded=False) as chat:
        await chat.say("/model other", wait=False)
        gate.set()
        await chat.until(lambda: chat.idle and client.targets[-1] == "other.gguf")
        assert chat.session.launch.name == "other"
        assert "went wrong" not in chat.text


async def test_looking_for_models_is_shown_keeps_nobody_waiting_and_the_last_wish_counts() -> None:
    client, gate = Loader(), threading.Event()

    def slowly(name: str, draft: Path | None) -> Launch:
        if name == "first":
            gate.wait(10)
        return opener(name, draft)

    async with chatting(client, opener=slowly) as chat:
        await chat.say("/model first", wait=False)
        await chat.shows("Looking for first…")
        await chat.say("still here")
        await chat.shows("Hello there.")
        await chat.say("/model second", wait=False)
        await chat.shows("second writes from here on")
        gate.set()
        await chat.pilot.pause(0.1)
        assert client.targets == ["target.gguf", "second.gguf"]


@pytest.mark.parametrize(
    ("typed", "name", "draft"),
    [("a -md auto", "a", Path("auto")), ("my -mdx.gguf", "my -mdx.gguf", None), ("a b -md c d", "a b", Path("c d"))],
)
async def test_a_draft_is_named_as_on_the_command_line(typed: str, name: str, draft: Path | None) -> None:
    asked: list[tuple[str, Path | None]] = []

    def remembering(name: str, draft: Path | None) -> Launch:
        asked.append((name, draft))
        return opener(name, draft)

    async with chatting(Loader(), opener=remembering) as chat:
        await chat.say(f"/model {typed}", wait=False)
        await chat.until(lambda: asked == [(name, draft)])
        await chat.say("/model a -md", wait=False)
        await chat.until(lambda: "It is /model a -md auto" in chat.note)


async def test_without_a_name_it_lets_one_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    from specchat.pairs import catalog

    pairs = tuple(replace(pair, description=HOSTILE) for pair in list(catalog.load().pairs.values())[:3])
    monkeypatch.setattr(models, "installed", lambda: pairs)
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        await chat.say("/model", wait=False)
        await chat.shows("Loaded: demo", INFO.target.name, "Enter loads", pairs[1].name)
        await chat.pilot.press("escape")
        await chat.until(lambda: not isinstance(chat.app.screen, ModelsScreen))
        await chat.say("/model", wait=False)
        await chat.until(lambda: isinstance(chat.app.screen, ModelsScreen))
        chat.app.screen.query_one(OptionList).highlighted = 2
        await chat.pilot.press("enter")
        await chat.until(lambda: client.targets[-1] == f"{pairs[2].name}.gguf" and chat.idle)


# ---- /set


async def test_settings_are_shown_with_where_they_come_from() -> None:
    async with chatting(
        opener=opener, sources={"temperature": "the pair", "ctx": "settings file"}, size=(100, 50)
    ) as chat:
        await chat.say("/set")
        await chat.shows("speculation", "temperature", "0.8", "the pair", "settings file", "auto (8,192)")
        await chat.say("/set top_k")
        assert "top_k is 40 (default). Sample from" in chat.note


async def test_a_setting_changes_for_this_run_and_another_pair_keeps_it() -> None:
    client = Loader()
    async with chatting(client, opener=opener) as chat:
        await chat.say("/set temperature 0.2")
        assert "in this run. To keep it: temperature = 0.2 in " in chat.note
        await chat.say("hi")
        assert client.options[-1].sampling.temperature == 0.2
        await chat.say("/model other")
        await chat.until(lambda: chat.idle)
        await chat.say("hi")
        assert client.options[-1].sampling.temperature == 0.2
        await chat.say("/set temperature default")
        assert "temperature is 0.6 again" in chat.note
        await chat.say("/temp 1")
        await chat.say("/set temperature")
        assert "(this run)" in chat.note


async def test_speculation_and_system_prompt_are_settings_too() -> None:
    async with chatting(opener=opener) as chat:
        await chat.say("/set speculation ngram")
        assert chat.client.speculation.mode is Mode.NGRAM
        await chat.say("/set depth 5")
        assert chat.client.speculation.depth == 5
        await chat.say("/set depth default")
        assert chat.client.speculation.depth is None
        await chat.say("/set system Be brief.")
        await chat.say("hi")
        assert chat.client.asked[-1][0] == Message("system", "Be brief.")
        await chat.say("/set system Be long.")
        await chat.say("hi")
        assert chat.client.asked[-1][0] == Message("system", "Be brief.")  # a conversation keeps its own
        await chat.say("/new")
        await chat.say("hi")
        assert chat.client.asked[-1][0] == Message("system", "Be long.")


async def test_settings_of_loading_hold_from_the_next_load_on() -> None:
    async with chatting(opener=opener) as chat:
        await chat.say("/set ctx 4096")
        assert "once the models are loaded again" in chat.note
        assert chat.session.launch.settings.n_ctx == 4096
        await chat.say("/set memory_limit 2 GiB")
        assert 'memory_limit = "2 GiB"' in chat.note
        assert chat.session.launch.settings.memory_limit == 2 << 30
        await chat.say("/set theme nord")
        assert chat.app.theme == "nord"
        await chat.say("/set theme default")
        assert chat.app.theme == "textual-dark"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("/set temperature hot", "Temperature must be a number from 0 to 10"),
        ("/set temprature 1", "did you mean temperature?"),
        ("/set zzz", "there are speculation, depth, temperature"),
        ("/set model_dirs /x", "is read when specchat starts"),
        ("/set speculation fast", 'one of "auto", "draft", "ngram", "off"'),
        ("/set depth 99", "from 1 to 64"),
        ("/set theme zzz", "There is no theme zzz; there are"),
        (f"/set seed {HOSTILE}", "a whole number from 0"),
        ("/mouse sideways", "/mouse on or /mouse off"),
        ("/temp nan", "a number from 0 to 10"),
        ("/depth 0", "from 1 to 64"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_changes(typed: str, said: str) -> None:
    async with chatting(opener=opener) as chat:
        before = chat.session.launch, chat.session.options, chat.session.speculation
        await chat.say(typed)
        assert said in chat.note
        assert (chat.session.launch, chat.session.options, chat.session.speculation) == before


def test_a_tuning_is_what_was_opened_with_what_was_changed() -> None:
    opened = Launch("a", Path("a.gguf"), system_prompt="x", idle_seconds=60.0)
    tuning = Tuning(opened).set("top_k", 3).set("exact", True).set("idle_minutes", 2.0)
    assert (tuning.launch.options.sampling.top_k, tuning.launch.settings.exact) == (3, True)
    assert (tuning.launch.idle_seconds, tuning.launch.system_prompt) == (120.0, "x")
    assert tuning.of(replace(opened, name="b")).launch == replace(tuning.launch, name="b")
    assert tuning.reset("top_k").reset("exact").reset("idle_minutes").launch == opened
    assert (tuning.source("top_k"), tuning.source("top_p")) == ("this run", "default")


# ---- /answer


async def test_thinking_is_ended_and_the_answer_comes() -> None:
    def thinker(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        while not client.hurried.wait(0.01):
            yield generated("hm ", client.figures(1), reasoning=True)
        yield generated("The answer ", client.figures(2))
        while not client.cancelled.wait(0.01):
            pass
        yield Finished("cancelled", client.figures(2))

    async with chatting(ScriptedClient(thinker, loaded=replace(INFO, thinks=True))) as chat:
        await chat.say("/answer")
        assert "No reply is being written" in chat.note
        await chat.pilot.press("ctrl+c")
        await chat.say("hi", wait=False)
        await chat.shows("thinking")
        await chat.say("/answer", wait=False)
        await chat.shows("The answer")
        assert chat.box.text == ""
        await chat.say("/answer", wait=False)
        await chat.until(lambda: "not thinking now" in chat.note)


async def test_a_model_that_does_not_think_is_not_hurried() -> None:
    def silent(client: ScriptedClient, _: Sequence[Message]) -> Iterator[Event]:
        client.cancelled.wait(10)
        yield Finished("cancelled", client.figures(0))

    async with chatting(ScriptedClient(silent)) as chat:
        await chat.say("hi", wait=False)
        await chat.say("/answer", wait=False)
        await chat.until(lambda: "does not think" in chat.note)
        assert not chat.client.hurried.is_set()


# ---- nothing loaded


async def test_an_engine_that_unloads_itself_is_named_and_woken_by_the_next_message() -> None:
    async with chatting(idle_seconds=0.3) as chat:
        await chat.say("hi")
        await chat.until(lambda: "models unloaded" in chat.status and "next message wakes" in chat.status)
        assert chat.client.closed
        loads = chat.client.loads
        await chat.say("again", wait=False)
        await chat.until(lambda: len(chat.client.asked) == 2)
        assert chat.client.loads == loads + 1


async def test_unloading_is_shown() -> None:
    async with chatting() as chat:
        await chat.say("/unload")
        assert "models unloaded" in chat.status
        await chat.say("/unload")
        assert "not loaded" in chat.note
        await chat.pilot.press("ctrl+c")
        await chat.say("hi")
        assert "unloaded" not in chat.status


async def test_a_warning_is_on_the_screen() -> None:
    async with chatting(warning=f"Conversations will not be saved. {HOSTILE}") as chat:
        await chat.shows("Conversations will not be saved")


# ---- asking first


async def test_answering_again_asks_first_while_a_reply_is_written() -> None:
    client = ScriptedClient(until(threading.Event(), "some ", "more"))
    async with chatting(client) as chat:
        await chat.say("hi", wait=False)
        await chat.shows("some")
        await chat.say("/regen", wait=False)
        await chat.shows("Answering again stops it")
        await chat.pilot.press("n")
        await chat.pilot.pause()
        assert not chat.idle
        assert len(client.asked) == 1
        await chat.say("/regen", wait=False)
        await chat.until(lambda: isinstance(chat.app.screen, Question))
        await chat.pilot.press("y")
        await chat.until(lambda: len(client.asked) == 2)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.idle)
        await chat.say("/regen", wait=False)
        await chat.until(lambda: len(client.asked) == 3)  # nothing is being written: nothing to ask


def test_a_history_that_cannot_be_opened_is_said_and_keeps_nobody_from_chatting() -> None:
    locations.history_file().mkdir(parents=True)
    store, warning = open_store()
    with store:
        assert store.file is None
        assert warning.endswith("Conversations will not be saved.")
        assert warning[0].isupper()
