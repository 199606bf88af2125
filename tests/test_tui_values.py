"""The parts of the screen that are pure functions: text, fitting, figures, commands, completion, recall."""

from __future__ import annotations

import ast
import inspect
import re
import string
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from textual.content import Content
from textual.widgets import TextArea

from specchat.commands import report
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Finished, Message, Reading
from specchat.engine.stats import FEWEST_COMPARED, Figures
from specchat.errors import SpecchatError
from specchat.tui import figures as words
from specchat.tui import origins
from specchat.tui.actions import ACTIONS, COMMANDS, Place, bindings, key_name, keys_of
from specchat.tui.app import SpecchatApp
from specchat.tui.commands import CommandRunner
from specchat.tui.completion import candidates
from specchat.tui.fit import Segment, fit
from specchat.tui.invocation import CommandError, invocation
from specchat.tui.recall import Recall
from specchat.tui.reply import Reply
from specchat.tui.screens.chat import ChatScreen
from specchat.tui.screens.conversations import ConversationsScreen
from specchat.tui.screens.pairs import PairsScreen
from specchat.tui.screens.question import Question
from specchat.tui.screens.race import RaceScreen
from specchat.tui.shown import Shown
from specchat.tui.text import Cleaner, as_sentence, clean, first_clauses, one_line
from specchat.tui.widgets.prompt import PromptBox
from specchat.tui.widgets.transcript import Transcript
from tests.scripted_client import ScriptedClient, generated
from tests.tui import HOSTILE

FIGURES = ScriptedClient().figures(40)


# ---- text


@given(st.text())
def test_clean_text_has_no_control_characters_and_only_newlines_end_its_lines(text: str) -> None:
    cleaned = clean(text)
    assert all(ch in "\n\t" or (ch >= " " and not "\x7f" <= ch <= "\x9f") for ch in cleaned)
    assert cleaned.splitlines() == cleaned.removesuffix("\n").split("\n") or not cleaned


@given(st.text(alphabet=string.printable.replace("\r", "").replace("\x0b", "").replace("\x0c", "")))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert clean(text) == text


_SIGNS: Final = st.text(st.sampled_from("\x1b\x07\\[]();0mA7 \t\r\n\x9b"), max_size=40)


@example(["\x1b[", "\x1b"])
@example(["\x1b(", "\x1b[", "0\x1b"])
@given(st.lists(_SIGNS, max_size=12))
def test_a_text_that_comes_in_parts_is_cleaned_as_the_whole_is(parts: list[str]) -> None:
    cleaner, parts = Cleaner(), [*parts, "\nend"]  # nothing is held back for what may follow
    shown = "".join(map(cleaner.add, parts))
    assert shown == clean("".join(parts))
    assert not re.search("\x1b", shown)


@given(st.lists(_SIGNS, max_size=12), st.booleans())
def test_a_streamed_reply_never_shows_more_than_the_finished_one(parts: list[str], reasoning: bool) -> None:
    reply, whole = Reply(), clean("".join(parts))
    for part in parts:
        reply.add(generated(part, FIGURES, reasoning=reasoning))
        assert whole.startswith(reply.thoughts if reasoning else reply.text)
        assert reasoning or origins.coloured(reply.pieces).plain == reply.text
    shown = Shown("assistant", "").after(reply)
    assert (shown.thoughts if reasoning else shown.text) == whole


def test_escape_sequences_go_whole() -> None:
    assert clean("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://a\x1b\\y") == "red xy"
    assert clean("\x1b(B\x1b[mbold\x1b7 \x1b=(B) 7\x1b(") == "bold (B) 7"  # as tput and typescripts have them
    assert "[31m" not in clean(HOSTILE)
    assert "[red]x" in clean(HOSTILE)


@given(st.text(st.sampled_from("\x1b\x07\\[];0mA "), max_size=20), st.text(string.ascii_letters + " \n", max_size=40))
def test_a_sequence_without_an_end_takes_no_more_than_its_line(begun: str, text: str) -> None:
    assert clean(f"{begun}\n{text}").endswith(f"\n{text}")


def test_one_line_folds_and_cuts() -> None:
    assert one_line(" a\n b\tc ") == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"


def test_a_reason_is_shortened_by_whole_clauses() -> None:
    reason = "drafting 1 and verifying 2 costs 2.1 passes here; break-even acceptance 100 %, now 60 %: plain"
    assert first_clauses(reason, 200) == reason
    assert first_clauses(reason, 80) == "drafting 1 and verifying 2 costs 2.1 passes here; break-even acceptance 100 %"
    assert first_clauses(reason, 60) == "drafting 1 and verifying 2 costs 2.1 passes here"
    assert first_clauses(reason, 20) == ""


# ---- fitting


SEGMENTS = st.lists(
    st.builds(
        lambda text, rank, short: Segment(Content(text), rank, Content(text[:1]) if short else None),
        st.text("abc", min_size=1, max_size=12),
        st.integers(0, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(SEGMENTS, st.integers(1, 100))
def test_what_is_fitted_is_never_too_wide_and_never_cut(segments: list[Segment], width: int) -> None:
    shown = fit(segments, width)
    parts = shown.plain.split(" · ")
    whole = {text for s in segments for text in (s.content.plain, s.short.plain if s.short else "")}
    assert set(parts) <= whole
    assert shown.cell_length <= width or len(parts) == 1
    assert shown.cell_length == Content(shown.plain).cell_length


@pytest.mark.parametrize("width", range(8, 140))
def test_the_status_line_keeps_the_mode_and_then_the_speed_longest(width: int) -> None:
    shown = fit(words.status(Speculation(Mode.NGRAM), replace(FIGURES, drafter="ngram"), True, 8192), width).plain
    assert shown.startswith("● n-gram")
    order = ["tok/s", "acc", "plain", "452", "pass", "depth", "first"]
    present = [word in shown for word in order]
    assert present == sorted(present, reverse=True), shown


@pytest.mark.parametrize("width", [40, 56, 76])
def test_a_context_that_is_nearly_full_is_still_said_in_a_narrow_window(width: int) -> None:
    figures = replace(FIGURES, drafter="ngram", context_used=7000, context_size=8192)
    assert "7,000/8,192" in fit(words.status(Speculation(Mode.NGRAM), figures, True, 8192), width).plain


# ---- figures


def test_what_was_not_measured_is_a_dash() -> None:
    shown = fit(words.status(Speculation(), Figures(passes=1), True, 4096), 200).plain
    assert "– tok/s" in shown
    assert "–× plain" in shown
    assert "– accepted" in shown
    assert "first token –" in shown
    assert "0 of 4,096 tokens" in shown


@pytest.mark.parametrize("tokens", [1, FEWEST_COMPARED - 1, FEWEST_COMPARED])
def test_a_few_tokens_say_nothing_of_the_speed_up(tokens: int) -> None:
    figures = ScriptedClient().figures(tokens)
    lines = (
        fit(words.status(Speculation(), figures, False, 4096), 200).plain,
        fit(words.summary(figures, "", ("draft",)), 200).plain,
        " ".join(report.lines(figures)),
    )
    shown = [said for line in lines for said in re.findall(r"(\S+?)(?:×| x) plain", line)]
    assert shown == ["1.62" if tokens == FEWEST_COMPARED else "–"] * 3


def test_the_status_line_shows_the_engines_own_figures() -> None:
    shown = fit(words.status(Speculation(Mode.DRAFT), FIGURES, True, 0), 200).plain
    assert shown == (
        "● draft · 48.7 tok/s · 73% accepted · 1.62× plain · 2.41 tokens/pass · depth 8 · first token 0.31 s · "
        "452 of 8,192 tokens"
    )


@pytest.mark.parametrize(
    ("mode", "drafter", "shown"),
    [
        (Mode.AUTO, "draft", "● draft (auto)"),
        (Mode.AUTO, "plain", "● plain (auto)"),
        (Mode.DRAFT, "draft", "● draft"),
        (Mode.DRAFT, "plain", "● plain (not draft)"),
        (Mode.NGRAM, "plain", "● plain (not n-gram)"),
        (Mode.OFF, "plain", "● plain (off)"),
    ],
)
def test_the_mode_says_when_it_is_not_what_was_asked(mode: Mode, drafter: str, shown: str) -> None:
    figures = replace(FIGURES, drafter=drafter)
    assert words.status(Speculation(mode), figures, True, 0)[0].content.plain == shown


def test_the_reason_is_given_only_when_it_is_needed() -> None:
    plain = replace(FIGURES, drafter="plain", reason="drafting costs more than it saves (0.87×)")
    assert words.why_not_as_asked(Speculation(Mode.DRAFT), plain, "") == plain.reason
    assert words.why_not_as_asked(Speculation(Mode.AUTO), plain, "") == plain.reason
    assert words.why_not_as_asked(Speculation(Mode.DRAFT), plain, "no memory for it") == "no memory for it"
    assert words.why_not_as_asked(Speculation(Mode.OFF), plain, "no draft") == ""
    assert words.why_not_as_asked(Speculation(Mode.DRAFT), replace(plain, drafter="draft"), "") == ""
    assert words.why_not_as_asked(Speculation(Mode.AUTO), Figures(), "no memory for it") == "no memory for it"


def test_numbers_are_written_as_people_read_them() -> None:
    assert [words.speed(x) for x in (None, 3.14159, 99.94, 123.4)] == ["–", "3.1", "99.9", "123"]
    assert [words.seconds(x) for x in (None, 0.306, 12.4)] == ["–", "0.31 s", "12 s"]
    reading = fit(words.progress(Reading(1536, 6200, 40)), 200).plain
    assert reading.startswith("reading 1,536 of 6,200 tokens")
    assert "25%" in reading
    assert "40 already read" in reading


def test_a_nearly_full_context_is_coloured() -> None:
    def styles(used: int) -> set[str]:
        return {str(span.style) for span in words.context(used, 1000).content.spans}

    assert "$text-warning" in styles(900)
    assert "$text-warning" not in styles(500)


# ---- the reply


def test_a_reply_is_folded_from_its_events() -> None:
    reply = Reply()
    reply.add(Reading(512, 1000, 0))
    assert reply.progress is not None
    reply.add(generated("thought", FIGURES, reasoning=True))
    reply.add(generated("an\x1b[31mswer", replace(FIGURES, drafter="plain")))
    reply.add(Finished("end", FIGURES))
    assert (reply.text, reply.thoughts) == ("answer", "thought")
    assert not reply.progress
    assert reply.message == Message("assistant", "an\x1b[31mswer", "thought")
    assert (reply.drafters, reply.finish, reply.figures) == (("draft", "plain"), "end", FIGURES)


def test_the_mode_does_not_flicker_where_single_rounds_have_nothing_to_propose() -> None:
    ngram = replace(FIGURES, drafter="ngram", depth=5)
    nothing = replace(FIGURES, drafter="plain", depth=0, reason="nothing to propose here")
    reply = Reply()
    for figures in (nothing, ngram, nothing, ngram, nothing):
        reply.add(generated("x ", figures))
    assert (reply.steady.drafter, reply.steady.depth) == ("ngram", 5)
    for _ in range(20):
        reply.add(generated("x ", nothing))
    assert (reply.steady.drafter, reply.steady.reason) == ("plain", "nothing to propose here")
    assert replace(reply.steady, drafter="", depth=0, reason="") == replace(nothing, drafter="", reason="")


# ---- commands


@pytest.mark.parametrize(
    "text", ["hello", "/usr/bin/env python", "/tmp", "/", "//x", "/etc/hosts explain", "what does /new do?", "/2"]
)
def test_a_path_and_anything_else_is_a_message(text: str) -> None:
    if text == "/":
        with pytest.raises(CommandError):
            invocation(text)
    else:
        assert invocation(text) is None


def test_a_command_is_taken_apart() -> None:
    found = invocation("/speculation  ngram ")
    assert found is not None
    assert (found[0].name, found[1]) == ("speculation", "ngram")
    several = invocation("/system You are\nbrief.")
    assert several is not None
    assert several[1] == "You are\nbrief."


def test_an_unknown_command_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(CommandError, match="Did you mean /speculation"):
        invocation("/speculaton off")
    with pytest.raises(CommandError, match="/help lists them all"):
        invocation("/zzz")
    with pytest.raises(CommandError, match="nothing after it"):
        invocation("/new now")


def test_every_command_has_its_method_and_every_method_its_command() -> None:
    methods = {name.removeprefix("run_") for name in dir(CommandRunner) if name.startswith("run_")}
    assert methods == {command.name for command in COMMANDS}


def test_completion_offers_what_fits_and_nothing_once_complete() -> None:
    assert [offer.text for offer in candidates("/sy")] == ["/system "]
    assert [offer.text for offer in candidates("/s")] == ["/speculation ", "/system ", "/set ", "/search "]
    assert [offer.text for offer in candidates("/speculation n")] == ["/speculation ngram"]
    assert candidates("/speculation ngram") == ()
    assert candidates("hello /s") == ()
    assert candidates("/usr/bin") == ()
    assert len(candidates("/")) == len(COMMANDS)


# ---- keys


def test_every_action_has_its_method() -> None:
    homes = {Place.SCREEN: ChatScreen, Place.PROMPT: PromptBox, Place.CONVERSATION: Transcript}
    homes |= {
        Place.LIST: ConversationsScreen,
        Place.APP: SpecchatApp,
        Place.RACE: RaceScreen,
        Place.QUESTION: Question,
        Place.PAIRS: PairsScreen,
    }
    for action in ACTIONS:
        assert hasattr(homes[action.place], f"action_{action.name.partition('(')[0]}"), action.name


def test_no_key_is_given_twice_where_both_would_be_heard() -> None:
    everywhere = [key for a in ACTIONS if a.place in (Place.APP, Place.SCREEN) for key in a.keys]
    for place in (Place.PROMPT, Place.CONVERSATION):
        keys = everywhere + [key for a in ACTIONS if a.place is place for key in a.keys]
        assert len(keys) == len(set(keys)), place


def test_editing_keys_keep_their_meaning() -> None:
    editing = {key for binding in TextArea.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    ours = {key for action in ACTIONS if action.place in (Place.APP, Place.SCREEN, Place.PROMPT) for key in action.keys}
    # Up, Down, the page keys and Ctrl+D do what they did wherever ours has nothing to add; Ctrl+C copies first.
    assert ours & editing == {"up", "down", "pageup", "pagedown", "ctrl+d", "ctrl+c"}
    assert not ours & {"ctrl+i", "ctrl+m", "ctrl+h", "ctrl+left_square_bracket"}


def test_bindings_carry_the_names_that_settings_map() -> None:
    assert {binding.id for binding in bindings(Place.SCREEN)} >= {"help", "toggle_speculation"}
    toggle = next(action for action in ACTIONS if action.name == "toggle_speculation")
    assert keys_of(toggle, {"toggle_speculation": "f4, f5"}) == ("f4", "f5")
    assert keys_of(toggle, {}) == ("f2", "ctrl+t")
    assert [key_name(key) for key in ("ctrl+end", "f2", "G", "pageup")] == ["Ctrl+End", "F2", "G", "PgUp"]


def test_nothing_else_in_the_screens_binds_a_key() -> None:
    """BINDINGS anywhere in tui come from the registry, but for closing an overlay."""
    for screen in (ChatScreen, PromptBox, Transcript):
        tree = ast.parse(inspect.getsource(screen))
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Binding"]


# ---- recall


def test_walking_back_and_forth_brings_the_unsent_text_back() -> None:
    recall = Recall(["one", "two"])
    assert recall.step(-1, "draft") == "two"
    assert recall.step(-1, "two") == "one"
    assert recall.step(-1, "one") is None
    assert recall.step(1, "one") == "two"
    assert recall.step(1, "two") == "draft"
    assert recall.step(1, "draft") is None
    recall.add("two")
    assert recall.step(-1, "") == "two"
    assert recall.step(-1, "two") == "one"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("it failed", "It failed."),
        ("it failed.", "It failed."),
        (SpecchatError("it failed"), "It failed."),
        ("is it?", "Is it?"),
        ("model.gguf is damaged", "model.gguf is damaged."),
        ("Deleted: a very long tit…", "Deleted: a very long tit…"),
        ("", ""),
        (ValueError("x"), "Something went wrong inside specchat: ValueError: x."),
        (ValueError(), "Something went wrong inside specchat: ValueError."),
    ],
)
def test_what_is_said_is_a_sentence(said: Exception | str, shown: str) -> None:
    assert as_sentence(said) == shown
    assert as_sentence(shown) == shown
