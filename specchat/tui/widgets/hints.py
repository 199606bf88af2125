"""The footer: the few keys that matter now."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.style import Style

from specchat.tui.actions import ACTIONS, key_name, keys_of
from specchat.tui.fit import Segment
from specchat.tui.widgets.status import StatusLine


class Hints(StatusLine):
    """Keys with their labels, each of which can be clicked."""

    def show_actions(self, labels: Mapping[str, str], keymap: Mapping[str, str]) -> None:
        """`labels` names the actions that make sense now, with what to call them ("" for their own label)."""
        shown = [action for action in ACTIONS if action.hint is not None and action.name in labels]
        self.show(
            [
                Segment(
                    _hint(action.name, keys_of(action, keymap)[0], labels[action.name] or action.label),
                    action.hint or 0,
                )
                for action in shown
            ]
        )


def _hint(name: str, key: str, label: str) -> Content:
    click = Style.from_meta({"@click": f"screen.run_hint('{name}')"})
    return Content.assemble(
        Content.styled(key_name(key), Style.parse("$foreground 85%") + click),
        Content.styled(f" {label}", Style.parse("$foreground 45%") + click),
    )
