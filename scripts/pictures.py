"""The README's pictures: a real reply of the demo pair, recorded once and played through the real screen.

Contract: the same recording gives the same pictures. `docs/reply.json` holds what the engine sent, event by event
with its figures; the screen is driven by the keys that a person would press. Nothing of the user's is read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final

from textual.widgets import TextArea

from specchat.engine.policy import Speculation
from specchat.engine.replies import Event, Finished, Generated, Message, Reading, ReplyOptions
from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import Figures
from specchat.engine.text import Piece
from specchat.pairs import catalog, prepare
from specchat.pairs.library import Library
from specchat.session import Launch, Session
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.widgets.welcome import EXAMPLES
from specchat.worker.client import Client
from specchat.worker.protocol import EngineInfo, Loading, LoadSettings, ModelInfo

DOCS: Final = Path(__file__).parents[1] / "docs"
RECORDING: Final = DOCS / "reply.json"
SIZE: Final = (100, 28)  # columns and rows: still legible at the width of a web page
TALL: Final = (100, 42)  # with room for every figure
EXAMPLE: Final = 1  # of the empty chat: key F8
HALF_WAY: Final = 0.75  # of the reply, where the first picture is taken
PATIENCE: Final = 20.0  # seconds for the screen to show one event


# ---- the recording


@dataclass(frozen=True, slots=True)
class Recording:
    """What was loaded, and one reply to the example's prompt."""

    info: EngineInfo
    events: tuple[Event, ...]


def record() -> Recording:
    """Let the demo pair answer the example, here and now."""
    known, library = catalog.load(), Library.default()
    pair = known.pair("demo")
    assert pair.draft is not None
    for _ in prepare.prepare(known, library, pair):
        pass
    launch = Launch(
        name=pair.name,
        target=library.path(pair.target),
        draft=library.path(pair.draft),
        settings=LoadSettings(speculation=Speculation(EXAMPLES[EXAMPLE - 1].mode)),
        options=ReplyOptions(SamplingSettings(temperature=0.0)),
    )
    with closing(Session(launch)) as session:
        for _ in session.load():
            pass
        info = session.info
        assert info is not None
        # The first reply warms everything up, and is asked otherwise: its prompt must not be in the cache.
        for _ in session.send("Count from one to twelve."):
            pass
        session.messages = ()
        events = tuple(event for event in session.send(EXAMPLES[EXAMPLE - 1].prompt) if not isinstance(event, Loading))
    return Recording(info, events)


def compact(value: Any) -> Any:
    """A value as JSON has it: dataclasses without the fields that hold their default, times to the microsecond."""
    if is_dataclass(value):
        held = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {name: compact(content) for name, (content, default) in held.items() if content != default}
    if isinstance(value, tuple):
        return [compact(entry) for entry in value]
    return round(value, 6) if isinstance(value, float) else value


def save(recording: Recording, path: Path) -> None:
    """One event a line."""
    lines = [json.dumps(compact(recording.info), ensure_ascii=False)]
    lines += [json.dumps([type(e).__name__, compact(e)], ensure_ascii=False) for e in recording.events]
    path.write_text("[" + ",\n".join(lines) + "]\n", "utf-8")


def load(path: Path) -> Recording:
    """What `save` wrote."""
    info, *events = json.loads(path.read_text("utf-8"))
    held: dict[str, Any] = {name: _tuple(value) for name, value in info.items()}
    held |= {role: ModelInfo(**info[role]) for role in ("target", "draft")}
    return Recording(EngineInfo(**held), tuple(_event(kind, values) for kind, values in events))


def _event(kind: str, values: dict[str, Any]) -> Event:
    if kind == "Reading":
        return Reading(**values)
    pieces = tuple(Piece(p["text"], Origin(p["origin"]), p.get("reasoning", False)) for p in values.get("pieces", ()))
    figures = Figures(**values["figures"])
    if kind == "Finished":
        return Finished(values["reason"], figures, pieces)
    held: dict[str, Any] = {name: _tuple(value) for name, value in values["round"].items()}
    held["origins"] = tuple(map(Origin, held["origins"]))
    return Generated(pieces, Round(**held), figures)


def _tuple(value: Any) -> Any:
    """JSON knows lists only."""
    return tuple(value) if isinstance(value, list) else value


# ---- playing it


class Player(Client):
    """A client that hands a recorded reply out, one event at each `step`."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording
        self._steps = threading.Semaphore(0)

    @property
    def info(self) -> EngineInfo:
        return self._recording.info

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        del messages, options
        for event in self._recording.events:
            self._steps.acquire()
            yield event

    def step(self) -> None:
        """Let the next event go."""
        self._steps.release()


class Film:
    """The screen, and the recording that it plays."""

    def __init__(self, recording: Recording) -> None:
        self._events = recording.events
        self._player = Player(recording)
        launch = Launch("demo", Path("target.gguf"), is_demo=True)
        self._app = SpecchatApp(Session(launch, self._player))

    async def shoot(self) -> dict[str, str]:
        """The pictures, by name."""
        pictures = {}
        async with self._app.run_test(size=SIZE) as pilot:
            screen = self._app.screen
            assert isinstance(screen, ChatScreen)
            screen.query_one("#prompt", TextArea).cursor_blink = False
            await pilot.press(f"f{7 + EXAMPLE}")
            split = round(HALF_WAY * len(self._events))
            await self._play(screen, self._events[:split])
            pictures["chat"] = self._picture()
            await self._play(screen, self._events[split:])
            await pilot.resize_terminal(*TALL)
            await pilot.press("f3", "f4")
            await pilot.pause(0.5)
            pictures["figures"] = self._picture()
        return pictures

    async def _play(self, screen: ChatScreen, events: Sequence[Event]) -> None:
        for event in events:
            self._player.step()
            async with asyncio.timeout(PATIENCE):
                while not _shown(screen, event):
                    await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)  # the Markdown settles

    def _picture(self) -> str:
        # Rich names a font on a web server: a picture must fetch nothing.
        drawn = re.sub(r"@font-face \{.*?\}\n", "", self._app.export_screenshot(simplify=True), flags=re.DOTALL)
        return "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip()) + "\n"


def _shown(screen: ChatScreen, event: Event) -> bool:
    match event:
        case Generated(figures=figures):
            return screen.figures.tokens == figures.tokens
        case Finished():
            return not screen.busy
        case _:
            return screen.busy


def draw(recording: Recording) -> dict[str, str]:
    """The pictures as SVG, by name."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SPECCHAT_HOME"] = home
        return asyncio.run(Film(recording).shoot())


def main() -> None:
    """`scripts/pictures [--record]`."""
    parser = argparse.ArgumentParser(prog="scripts/pictures", description="Draw the README's pictures into docs/.")
    parser.add_argument("--record", action="store_true", help="record the reply anew first, with the demo pair")
    if parser.parse_args().record:
        save(record(), RECORDING)
        print(RECORDING)
    for name, picture in draw(load(RECORDING)).items():
        path = DOCS / f"{name}.svg"
        path.write_text(picture, "utf-8")
        print(path)


if __name__ == "__main__":
    main()
