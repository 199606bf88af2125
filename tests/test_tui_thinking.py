"""/answer and /think over a real engine process: a tiny model whose template has it think before it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gguf
import pytest

from specchat import locations
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Message, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.session import Launch, Session
from specchat.tui.app import SpecchatApp
from specchat.tui.reply import Reply
from specchat.worker.protocol import LoadSettings
from tests import ggufs
from tests.ggufs import Shape
from tests.scripted_client import ScriptedClient
from tests.tui import Chat

# As Qwen3's in what matters: reasoning of earlier turns is left out, and switching it off closes an empty block.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # the first tokens of the tiny model's vocabulary
WINDOW = 32768  # tokens: seconds of thinking, far more than a test waits for


@asynccontextmanager
async def thinking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str = TEMPLATE) -> AsyncIterator[Chat]:
    """The screen over an engine of its own. Its model is noise: it neither closes its thinking nor ends a reply."""
    monkeypatch.setenv(locations.HOME_VARIABLE, str(tmp_path))
    target = ggufs.write(
        tmp_path / "thinker.gguf", ggufs.bpe(SPECIAL), shape=Shape(n_layer=32, n_ctx_train=WINDOW), template=template
    )
    for tensor in gguf.GGUFReader(target, "r+").tensors:
        if tensor.name == "output.weight":
            tensor.data[: len(SPECIAL)] = 0  # never the likeliest
    settings = LoadSettings(n_ctx=WINDOW, threads=1, speculation=Speculation(Mode.OFF))
    session = Session(
        Launch("thinker", target, settings=settings, options=ReplyOptions(SamplingSettings(temperature=0)))
    )
    app = SpecchatApp(session)
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            chat = Chat(app, pilot, session, ScriptedClient())
            await chat.until(lambda: chat.idle, 60)
            yield chat
    finally:
        session.close()


def reply(chat: Chat) -> Reply:
    """The running reply."""
    assert chat.screen.play.now is not None
    return chat.screen.play.now.reply


async def stop(chat: Chat) -> Message:
    """Stop the reply; answers with it."""
    await chat.pilot.press("escape")
    await chat.until(lambda: chat.idle)
    return chat.session.messages[-1]


async def test_answer_closes_the_thinking_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with thinking(tmp_path, monkeypatch) as chat:
        await chat.say("hi", wait=False)
        await chat.until(lambda: reply(chat).reasoning)
        assert not reply(chat).answer
        await chat.say("/answer", wait=False)
        await chat.until(lambda: reply(chat).answer)
        thoughts = reply(chat).reasoning
        await chat.say("/answer", wait=False)
        await chat.until(lambda: "is not thinking now" in chat.note)
        chat.box.replace_all("")
        message = await stop(chat)
        assert message.reasoning == thoughts
        assert message.content
        assert "think>" not in message.content + message.reasoning
        await chat.shows("thought · ")


async def test_answer_pressed_twice_at_once_is_as_good_as_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with thinking(tmp_path, monkeypatch) as chat:
        await chat.say("hi", wait=False)
        await chat.until(lambda: reply(chat).reasoning)
        chat.session.answer_now()
        chat.session.answer_now()
        await chat.until(lambda: reply(chat).answer)
        assert "</think>" not in (await stop(chat)).content
        # And the next reply thinks again, until it is told.
        await chat.say("again", wait=False)
        await chat.until(lambda: len(reply(chat).reasoning) > 100)
        assert not reply(chat).answer
        assert (await stop(chat)).content == ""


async def test_answer_leaves_a_message_that_waits_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with thinking(tmp_path, monkeypatch) as chat:
        await chat.say("/answer", wait=False)
        await chat.until(lambda: "No reply is being written" in chat.note)
        chat.box.replace_all("")
        await chat.say("hi", wait=False)
        await chat.until(lambda: reply(chat).reasoning)
        await chat.say("the next one", wait=False)
        await chat.shows("Next: the next one")
        await chat.say("/answer", wait=False)
        await chat.until(lambda: reply(chat).answer)
        assert "Next: the next one" in chat.text
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.screen.play.now is not None and chat.screen.play.now.text == "the next one")
        await chat.until(lambda: reply(chat).reasoning)
        assert (await stop(chat)).content == ""
        assert [m.content for m in chat.session.messages if m.role == "user"] == ["hi", "the next one"]


async def test_thinking_is_switched_off_and_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with thinking(tmp_path, monkeypatch) as chat:
        for command, thinks in (("off", False), ("off", False), ("on", True), ("on", True)):
            await chat.say(f"/think {command}")
            assert chat.note == f"Reasoning is {command} from the next message on."
            await chat.say("hi", wait=False)
            await chat.until(lambda: reply(chat).reasoning or reply(chat).answer)
            message = await stop(chat)
            assert bool(message.reasoning) == thinks
            assert bool(message.content) != thinks


async def test_a_model_that_cannot_think_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with thinking(tmp_path, monkeypatch, ggufs.CHATML) as chat:
        await chat.say("/think off")
        assert "no switch for reasoning" in chat.note
        chat.box.replace_all("")
        await chat.say("hi", wait=False)
        await chat.until(lambda: reply(chat).answer)
        await chat.say("/answer", wait=False)
        await chat.until(lambda: "not thinking" in chat.note)
