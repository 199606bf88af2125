"""What an empty chat says: which models these are, honestly, and how to begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.style import Style
from textual.widgets import Static

from specchat.engine.policy import Mode
from specchat.session import Session
from specchat.tui.text import one_line


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt worth trying on the demo pair, with the drafter to try it with."""

    title: str
    why: str
    prompt: str
    mode: Mode


_PARAGRAPH: Final = (
    "The old lighthouse stand at the end of the peninsula, and every evening it's lamp sweep across the bay. "
    "Fisherman from the village says that no ship have been lost since it was build in 1874, allthough the rocks "
    "below it is among the most dangerous of the whole coast. Last winter a storm has broken two of the windows, "
    "and the keeper, who lives there since thirty years, repair them by himself."
)

EXAMPLES: Final = (
    Example(
        "Correct a paragraph",
        "n-gram is ahead: the reply repeats the text",
        f"Correct the mistakes in this text and print the corrected text:\n\n{_PARAGRAPH}",
        Mode.NGRAM,
    ),
    Example(
        "Tell a story",
        "plain is ahead: there is nothing to look up",
        "Tell me a short story about a lighthouse keeper who finds a message in a bottle.",
        Mode.OFF,
    ),
)

_DEMO: Final = (
    "This is the demo pair: SmolLM2 with 135 million parameters, a tiny model to try the program with. It makes "
    "things up, and its draft model is so nearly its own size that drafting with it cannot pay on a CPU. N-gram "
    "look-up needs no second model and can."
)


class Welcome(Vertical):
    """Shown until the first message."""

    def __init__(self, session: Session, keys: Mapping[str, str]) -> None:
        """`keys` maps action names to the key that people press."""
        super().__init__(id="welcome")
        self._session = session
        self._keys = keys

    def compose(self) -> ComposeResult:
        launch = self._session.launch
        yield Static(Content.styled("specchat", "bold $text-primary"), classes="title")
        if launch.is_demo:
            yield Static(_DEMO, markup=False)
            for number, example in enumerate(EXAMPLES, start=1):
                yield Static(self._example(number, example), classes="example")
            yield Static(self._sentence("For a pair worth talking to, type ", "/pull", "."), classes="gap")
        else:
            yield Static(self._pair(), id="pair")
        speculation = self._keys["toggle_speculation"]
        yield Static(
            self._sentence("", speculation, " switches speculation off and on, in the middle of a reply too."),
            classes="gap",
        )

    def _pair(self) -> Content:
        launch, info = self._session.launch, self._session.info
        target, draft = (
            (launch.target.name, launch.draft.name if launch.draft else "")
            if info is None
            else (info.target.name, info.draft.name if info.draft else "")
        )
        name = Content.styled(one_line(launch.name, 60), "bold")
        writes = f": {one_line(target, 60)} writes" if target != launch.name else " writes"
        proposes = f", {one_line(draft, 60)} proposes." if draft else " alone; n-gram look-up proposes."
        return Content.assemble(name, writes + proposes)

    def _example(self, number: int, example: Example) -> Content:
        action = ("first_example", "second_example")[number - 1]
        click = Style.from_meta({"@click": f"screen.{action}"})
        return Content.assemble(
            Content.styled(f" {self._keys[action]} ", Style.parse("$text-accent on $surface") + click),
            Content.styled(f"  {example.title}", Style.parse("bold") + click),
            (f"  {example.why}", "$foreground 60%"),
        )

    @staticmethod
    def _sentence(before: str, strong: str, after: str) -> Content:
        return Content.assemble((before, "$foreground 60%"), (strong, "$text-accent"), (after, "$foreground 60%"))
