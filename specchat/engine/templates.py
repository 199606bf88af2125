"""Messages -> tokens, through the chat template that the GGUF file carries.

Contract: exactly one BOS where the vocabulary asks for one or the template writes one; a system message that the
template refuses or drops is put before the first user turn; without a usable template, ChatML and a notice. Control
tokens come from the template alone: a message that spells `<|im_end|>` has those characters in it and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from specchat.engine.text import CLOSE, OPEN
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.engine.llama import Model
    from specchat.engine.replies import Message

CHATML: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}"
)
_PROBE: Final = "a system message"
# What Jinja2ChatFormatter passes itself.
_RESERVED: Final = frozenset(
    {"messages", "bos_token", "eos_token", "raise_exception", "add_generation_prompt", "functions", "function_call"}
    | {"tools", "tool_choice", "strftime_now"}
)

Turn: TypeAlias = dict[str, str]


class TemplateError(SpecchatError):
    """The template cannot write this conversation."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and where in a reply it leaves off."""

    tokens: list[int]
    in_reasoning: bool  # inside a block that the template, or the reply to go on with, opened
    in_answer: bool  # in the middle of an answer


class ChatTemplate:
    """The template of one model, compiled."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.notice = ""  # what to tell the user about it, in a sentence
        self.stop: tuple[str, ...] = ()  # what ends a reply where the vocabulary has no token for it
        self._clean: set[str] = set()  # texts of the latest conversation in which nothing looks special
        source = model.chat_template
        if not source:
            self._fall_back(f"{model.path.name} has no chat template: ChatML is used, which may not suit it")
            return
        try:
            self._use(source)
        except Exception as error:  # whatever a stranger's template makes Jinja raise
            self._fall_back(f"the chat template of {model.path.name} cannot be read ({error}): ChatML is used")

    def _fall_back(self, notice: str) -> None:
        self.notice = notice
        self.stop = ("<|im_end|>",)
        self._use(CHATML)

    def _use(self, source: str) -> None:
        model = self._model
        bos, eos = ("" if token is None else model.token_text(token) for token in (model.bos, model.eos))
        self._source = source
        self._formatter = Jinja2ChatFormatter(source, eos_token=eos, bos_token=bos)

    @property
    def thinks(self) -> bool:
        """Whether the template knows of reasoning blocks."""
        return CLOSE in self._source

    @property
    def can_toggle_thinking(self) -> bool:
        """Whether the template takes the variable `enable_thinking`."""
        return "enable_thinking" in self._source

    @cached_property
    def closing(self) -> list[int]:
        """What ends a reasoning block, as templates write it."""
        return self._model.tokenize(f"\n{CLOSE}\n\n", parse_special=True)

    def render(
        self, messages: Sequence[Message], variables: Mapping[str, object] | None = None, *, continue_last: bool = False
    ) -> Rendered:
        """The prompt for the next reply, or, with `continue_last`, for the rest of the last message, an assistant's.

        `variables` go to the template. Raises TemplateError.
        """
        texts = [text for message in messages for text in (message.content, message.reasoning)]
        self._clean &= set(texts)
        mark = _unused_character([self._source, *texts])
        turns = [self._turn(message, mark) for message in messages]
        partial = turns.pop() if continue_last and turns and turns[-1]["role"] == "assistant" else {}
        text = self._text(turns, variables or {})
        text, in_reasoning = _append(text, partial.get("reasoning_content", ""), partial.get("content", ""))
        return Rendered(self._with_bos(self._tokenize(text, mark)), in_reasoning, bool(partial.get("content")))

    # ---- messages -> text

    def _turn(self, message: Message, mark: str) -> Turn:
        turn = {"role": message.role, "content": self._defuse(message.content, mark)}
        if message.reasoning:
            turn["reasoning_content"] = self._defuse(message.reasoning, mark)
        return turn

    def _text(self, turns: Sequence[Turn], variables: Mapping[str, object]) -> str:
        if turns and turns[0]["role"] == "system" and not self._takes_system:
            turns = _fold_system(turns)
        return self._format(turns, variables)

    def _format(self, turns: Sequence[Turn], variables: Mapping[str, object]) -> str:
        if taken := sorted(_RESERVED & variables.keys()):
            raise TemplateError(f"the template variable {taken[0]} is set by the program")
        try:
            return str(self._formatter(messages=list(turns), **variables).prompt)
        except Exception as error:  # whatever a stranger's template raises, on purpose or not
            name = self._model.path.name
            raise TemplateError(f"the chat template of {name} refuses this conversation: {error}") from error

    @cached_property
    def _takes_system(self) -> bool:
        turns = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "x"}]
        try:
            return _PROBE in self._format(turns, {})
        except TemplateError:
            return False

    # ---- text -> tokens

    def _defuse(self, text: str, mark: str) -> str:
        """`text` with `mark` inside everything that would be read as a special token."""
        if text in self._clean:
            return text
        original = text
        while True:
            tokens = set(self._model.tokenize(text, parse_special=True))
            literals = [
                literal for token in tokens if self._is_special(token) and len(literal := self._literal(token)) > 1
            ]
            defused = text
            for literal in sorted(literals, key=len, reverse=True):
                defused = defused.replace(literal, literal[0] + mark + literal[1:])
            if defused == text:
                break
            text = defused
        if text == original:
            self._clean.add(text)
        return text

    def _tokenize(self, text: str, mark: str) -> list[int]:
        """Tokens of a rendered prompt: special ones as themselves, marked stretches as plain text.

        llama.cpp cuts a text at its special tokens and tokenises what lies between on its own; so a stretch with a
        mark in it can be replaced without disturbing its neighbours, or the space that SentencePiece puts first.
        """
        tokens = self._model.tokenize(text, parse_special=True)
        if mark not in text:
            return tokens
        result: list[int] = []
        run: list[int] = []
        start = 0
        for token in tokens:
            literal = self._literal(token)
            at = text.find(literal, start) if self._is_special(token) else -1
            if at < 0:
                run.append(token)
                continue
            result += [*self._plain(text[start:at], run, mark), token]
            start, run = at + len(literal), []
        return result + self._plain(text[start:], run, mark)

    def _plain(self, stretch: str, tokens: list[int], mark: str) -> list[int]:
        """`tokens` of a stretch between special tokens, or those without the marks in it."""
        if mark not in stretch:
            return tokens
        tokens = self._model.tokenize(stretch.replace(mark, ""))
        if any(map(self._is_special, tokens)):
            # Tokens added to a vocabulary whole are always found: keep their halves apart.
            return [token for part in stretch.split(mark) for token in self._model.tokenize(part)]
        return tokens

    def _is_special(self, token: int) -> bool:
        return self._model.is_control(token) or token in self._markers

    def _literal(self, token: int) -> str:
        return self._model.token_text(token)

    @cached_property
    def _markers(self) -> frozenset[int]:
        """Tokens that are not control tokens but serve the template as such (Gemma's `<start_of_turn>`)."""
        turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        try:
            text = self._format(turns, {})
        except TemplateError:
            text = ""
        tokens = set(self._model.tokenize(text + OPEN + CLOSE, parse_special=True))
        return frozenset(t for t in tokens if self._model.is_user_defined(t) and len(self._literal(t).strip()) > 1)

    def _with_bos(self, tokens: list[int]) -> list[int]:
        bos = self._model.bos
        if bos is None:
            return tokens
        while tokens[:2] == [bos, bos]:
            del tokens[0]
        return [bos, *tokens] if self._model.add_bos and tokens[:1] != [bos] else tokens


def _fold_system(turns: Sequence[Turn]) -> list[Turn]:
    """The system message put before the first user turn, or in its place."""
    system, *rest = turns
    if not system["content"]:
        return rest
    at = next((i for i, turn in enumerate(rest) if turn["role"] == "user"), None)
    if at is None:
        return [{"role": "user", "content": system["content"]}, *rest]
    folded = rest[at] | {"content": f"{system['content']}\n\n{rest[at]['content']}"}
    return [*rest[:at], folded, *rest[at + 1 :]]


def _append(text: str, reasoning: str, content: str) -> tuple[str, bool]:
    """A prompt with the beginning of its reply; whether it ends inside reasoning."""
    end = text.rstrip()
    opened = end.endswith(OPEN)
    if reasoning and not opened and not end.endswith(CLOSE):
        text, opened = f"{text}{OPEN}\n", True
    if opened:
        text += reasoning
        if content:
            text, opened = f"{text}\n{CLOSE}\n\n", False
    return text + content, opened


def _unused_character(texts: Sequence[str]) -> str:
    """A private-use character that none of the texts has."""
    used = set().union(*texts)
    return next(character for character in _private_use() if character not in used)


def _private_use() -> Iterator[str]:
    yield from map(chr, range(0xE000, 0xF900))
    yield from map(chr, range(0xF0000, 0xFFFFE))
