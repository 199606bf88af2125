"""Every key and every slash command: the one registry.

Contract: the footer's hints, the help screen, the command palette, completion and the README are made from these
tables, and the screens take their key bindings from them; nothing else binds a key. An action `name` is the method
`action_<name>` of the widget or screen at its `place`, and the name by which settings re-map it; a command `name`
is the method `run_<name>` of `tui.commands.CommandRunner`.

Keys that TextArea uses for editing (ctrl+a/e/k/u/w/x/v/z/y, F6, F7) are bound to nothing else; ctrl+i, ctrl+m, ctrl+h
and ctrl+[ are Tab, Enter, Backspace and Esc to a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from textual.binding import Binding
from textual.keys import key_to_character


class Place(StrEnum):
    """Where an action's keys are listened to."""

    APP = "on every screen"
    SCREEN = "in the chat"
    PROMPT = "in the box"
    CONVERSATION = "in the conversation"
    LIST = "in the list of conversations"
    RACE = "in a race"
    PAIRS = "in the list of pairs"
    QUESTION = "when asked"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a key does."""

    name: str
    keys: tuple[str, ...]  # in Textual's names, the one to show first
    label: str  # a word or two, for the footer
    help: str  # one sentence
    place: Place = Place.SCREEN
    hint: int | None = None  # in the footer, with this rank (0 stays longest); None: not there
    priority: bool = False  # before the focused widget sees the key
    palette: bool = False  # offered in the command palette


ACTIONS: Final = (
    Action("send", ("enter",), "Send", "Send the message.", Place.PROMPT),
    Action(
        "newline",
        ("ctrl+j", "shift+enter", "alt+enter"),
        "New line",
        "Start a new line in the message.",
        Place.PROMPT,
    ),
    Action("previous", ("up",), "Earlier", "On the first line: an earlier message of yours.", Place.PROMPT),
    Action("next", ("down",), "Later", "On the last line: a later message of yours.", Place.PROMPT),
    Action("page_back", ("pageup",), "Scroll up", "Scroll the conversation up by a page.", Place.PROMPT),
    Action("page_on", ("pagedown",), "Scroll down", "Scroll the conversation down by a page.", Place.PROMPT),
    Action("unfold_pastes", ("ctrl+l",), "Unfold", "Show long pastes in full, to be edited.", Place.PROMPT),
    Action("leave_or_delete", ("ctrl+d",), "Quit", "Quit if the box is empty; else delete forward.", Place.PROMPT),
    Action("complete", ("tab",), "Complete", "Complete a command, or go to the conversation.", Place.PROMPT),
    Action("help", ("f1",), "Help", "Show the keys and commands.", hint=1, palette=True),
    Action(
        "toggle_speculation",
        ("f2", "ctrl+t"),
        "Speculation",
        "Switch speculation off and on, in the middle of a reply too.",
        hint=2,
        palette=True,
    ),
    Action("escape", ("escape",), "Stop", "Close the innermost thing, or stop the reply and keep what came.", hint=0),
    Action(
        "interrupt",
        ("ctrl+c",),
        "Copy",
        "Copy the selection, or clear the box, or stop the reply; twice with nothing to do: quit.",
        priority=True,
    ),
    Action("end", ("ctrl+end",), "To the end", "Go to the end and follow it.", hint=2, palette=True),
    Action("metrics", ("f3",), "Figures", "Show or hide the panel of figures.", palette=True),
    Action(
        "origins",
        ("f4",),
        "Origins",
        "Colour replies by where their tokens came from: draft, target, plain.",
        palette=True,
    ),
    Action(
        "elsewhere",
        ("f5",),
        "Other window",
        "Show what another window added to this conversation.",
        hint=1,
        palette=True,
    ),
    Action("editor", ("ctrl+g",), "Editor", "Open the message in $EDITOR.", palette=True),
    Action(
        "conversations",
        ("ctrl+r",),
        "Conversations",
        "Search, open, rename and delete conversations.",
        hint=6,
        palette=True,
    ),
    Action("new", ("ctrl+n",), "New", "Start a new conversation.", hint=4, palette=True),
    Action("command_palette", ("ctrl+p",), "Palette", "Search everything specchat can do.", Place.APP, hint=5),
    Action("quit", ("ctrl+q",), "Quit", "Quit; a running reply is stopped.", Place.APP, hint=3, priority=True),
    Action("first_example", ("f8",), "First example", "Send the demo pair's first example, with n-gram look-up on."),
    Action("second_example", ("f9",), "Second example", "Send the demo pair's second example, with speculation off."),
    Action("previous_turn", ("p", "left_square_bracket"), "Previous", "Select the turn before.", Place.CONVERSATION, 4),
    Action("next_turn", ("n", "right_square_bracket"), "Next", "Select the turn after.", Place.CONVERSATION, 5),
    Action("copy", ("y",), "Copy", "Copy the selected turn (the last if none is).", Place.CONVERSATION, 1),
    Action("copy_code", ("c",), "Copy code", "Copy the last code block of the selected reply.", Place.CONVERSATION, 6),
    Action("edit", ("e",), "Edit", "Edit the selected message and send a new version of it.", Place.CONVERSATION, 2),
    Action("regenerate", ("r",), "Again", "Have the selected message answered once more.", Place.CONVERSATION, 3),
    Action("go_on", ("o",), "Go on", "Have a last reply that was stopped written on.", Place.CONVERSATION, 7),
    Action("older_version", ("h", "left"), "Older", "Show the version before, and its branch.", Place.CONVERSATION),
    Action("newer_version", ("l", "right"), "Newer", "Show the version after, and its branch.", Place.CONVERSATION),
    Action("unfold", ("space", "enter"), "Open", "Open or fold thoughts and long messages.", Place.CONVERSATION),
    Action("command", ("/",), "Command", "Begin a command in the box.", Place.CONVERSATION),
    Action("line_down", ("j", "down"), "Down", "Scroll down a line.", Place.CONVERSATION),
    Action("line_up", ("k", "up"), "Up", "Scroll up a line.", Place.CONVERSATION),
    Action("top", ("g", "home"), "Top", "Go to the beginning.", Place.CONVERSATION),
    Action("bottom", ("G", "end"), "Bottom", "Go to the end and follow it.", Place.CONVERSATION),
    Action("list_up", ("up",), "Up", "The conversation above.", Place.LIST, priority=True),
    Action("list_down", ("down",), "Down", "The conversation below.", Place.LIST, priority=True),
    Action("rename", ("f2",), "Rename", "Give the conversation another title.", Place.LIST, 2, priority=True),
    Action("delete", ("ctrl+x",), "Delete", "Delete the conversation.", Place.LIST, 1, priority=True),
    Action("undelete", ("ctrl+z",), "Bring back", "Bring back what was deleted last.", Place.LIST, 3, priority=True),
    Action("search_reasoning", ("ctrl+t",), "Reasoning", "Search reasoning too, or not.", Place.LIST, 4, priority=True),
    Action("close_list", ("escape",), "Close", "Back to the chat.", Place.LIST, 0, priority=True),
    Action("stop_race", ("escape",), "Stop", "Stop the race, or its replay; then back to the chat.", Place.RACE, 0),
    Action("keep_race", ("k",), "Keep", "Keep both replies in the conversation.", Place.RACE, 1),
    Action("race_again", ("r",), "Again", "Race once more, the other side first.", Place.RACE, 2),
    Action("close_pairs", ("escape",), "Close", "Back to the chat.", Place.PAIRS),
    Action("say_yes", ("enter", "y"), "Yes", "Do it.", Place.QUESTION),
    Action("say_no", ("escape", "n"), "No", "Leave everything as it is.", Place.QUESTION),
)


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command."""

    name: str
    argument: str  # how the argument is written; "" if there is none, in brackets if it may be left out
    help: str
    choices: tuple[str, ...] = ()  # what completion offers for the argument

    @property
    def usage(self) -> str:
        """The command as the help writes it."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS: Final = (
    Command("help", "", "Show the keys and commands."),
    Command("new", "", "Start a new conversation."),
    Command(
        "speculation",
        "[auto|draft|ngram|off]",
        "Choose who proposes tokens, or show it.",
        ("auto", "draft", "ngram", "off"),
    ),
    Command("depth", "[N|auto]", "Propose N tokens a round (1 to 64), or leave it to the program.", ("auto",)),
    Command("system", "[TEXT|none]", "Set the system prompt of this conversation, or show it.", ("none",)),
    Command(
        "model",
        "[NAME|FILE [-md DRAFT|auto]]",
        "Load another pair or file (auto: with the smallest draft here); the conversation stays. Alone: choose a pair.",
    ),
    Command("set", "[NAME [VALUE]]", "Change a setting for this run, or show it; alone: show them all."),
    Command("temp", "[T]", "Set the sampling temperature (0 takes the likeliest token), or show it."),
    Command("regen", "", "Have the last message answered once more."),
    Command("edit", "", "Edit your last message and send a new version of it."),
    Command("continue", "", "Have a last reply that was stopped written on."),
    Command("copy", "[code [N]]", "Copy the last reply, or a code block of it (the last, or number N).", ("code",)),
    Command("export", "[md|json] [FILE]", "Save the conversation as Markdown or JSON.", ("md", "json")),
    Command("search", "[WORDS]", "Search all conversations."),
    Command("title", "[TEXT|auto]", "Give the conversation a title (auto: your first message), or show it.", ("auto",)),
    Command("think", "[on|off]", "Let the model reason before it answers, or not, where it can.", ("on", "off")),
    Command("answer", "", "Have a model that is thinking stop that and answer now."),
    Command("tokens", "[TEXT]", "Count the tokens of a text, or of the conversation."),
    Command("race", "[PROMPT]", "Watch plain and speculation write the same reply, on your last message or another."),
    Command("pull", "[PAIR|stop]", "Fetch a pair while you chat, choose one from the list, or stop.", ("stop",)),
    Command("plan", "", "Show where the models were placed, and why."),
    Command("unload", "", "Give the models' memory back; the next message loads them again."),
    Command("mouse", "[on|off]", "Leave the mouse to the terminal, for its own selection, or take it.", ("on", "off")),
    Command("exit", "", "Quit."),
)

_NAMES: Final = {
    "pageup": "PgUp",
    "pagedown": "PgDn",
    "escape": "Esc",
    "enter": "Enter",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def key_name(key: str) -> str:
    """A key as people write it: `ctrl+end` -> `Ctrl+End`."""
    *modifiers, last = key.split("+")
    character = key_to_character(last) if "_" in last else None
    shown = character or _NAMES.get(last, last if len(last) == 1 and not modifiers else last.capitalize())
    return "+".join([*(modifier.capitalize() for modifier in modifiers), shown])


def keys_of(action: Action, keymap: Mapping[str, str]) -> tuple[str, ...]:
    """The action's keys, re-mapped ones if there are any."""
    mapped = keymap.get(action.name, "")
    return tuple(key.strip() for key in mapped.split(",") if key.strip()) or action.keys


def key_of(name: str, keymap: Mapping[str, str]) -> str:
    """The first key of the action called `name`."""
    return next(keys_of(action, keymap)[0] for action in ACTIONS if action.name == name)


def bindings(place: Place, actions: Iterable[Action] = ACTIONS) -> list[Binding]:
    """Textual's bindings for one place; their ids are the names that settings re-map."""
    return [
        Binding(
            ",".join(action.keys),
            action.name,
            action.label,
            show=action.hint is not None,
            priority=action.priority,
            id=action.name,
        )
        for action in actions
        if action.place is place
    ]


def find_command(name: str) -> Command | None:
    """The command called `name` (without the slash)."""
    return next((command for command in COMMANDS if command.name == name), None)
