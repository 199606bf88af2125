"""The user's settings: one TOML file, every field documented where it stands (see `Settings`).

Contract: a missing file means the defaults. Anything wrong in it (TOML that does not parse, a field that does
not exist, a value of the wrong kind or out of range) is one SpecchatError naming the file and every wrong
field; nothing is ignored silently. Command line options override what is set here.

None means "not set": the program decides, or a pair's own entry in the catalogue does. In the file that is
the field left out, or "auto" where the field's description says so.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from specchat import locations
from specchat.errors import SpecchatError
from specchat.units import parse_size

T = TypeVar("T")
# Turns what TOML held into the field's value, or raises ValueError with what was expected ("true or false").
Parser = Callable[[object], object]


def _setting(default: T, parse: Parser, example: str, doc: str) -> T:
    """A documented field. `example` is its line in the template, as TOML."""
    field: Any = dataclasses.field(default=default, metadata={"parse": parse, "example": example, "doc": doc})
    result: T = field
    return result


def _whole(low: int, high: int | None = None, auto: bool = False) -> Parser:
    span = f"a whole number from {low}" + (f" to {high}" if high is not None else "")

    def parse(value: object) -> object:
        if auto and value == "auto":
            return None
        # bool is an int in Python; `depth = true` is a mistake all the same.
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            raise ValueError(span + (' or "auto"' if auto else ""))
        if high is not None and value > high:
            raise ValueError(span + (' or "auto"' if auto else ""))
        return value

    return parse


def _number(low: float, high: float | None = None) -> Parser:
    def parse(value: object) -> object:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        # The negated form also refuses nan.
        if not fits or not (low <= float(str(value)) <= (high if high is not None else 1e9)):
            raise ValueError(f"a number from {low:g}" + (f" to {high:g}" if high is not None else ""))
        return float(str(value))

    return parse


def _flag(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("a text in quotes")
    return value


@dataclass(frozen=True, slots=True)
class _Choice:
    names: tuple[str, ...]

    def __call__(self, value: object) -> object:
        if value not in self.names:
            raise ValueError("one of " + ", ".join(f'"{name}"' for name in self.names))
        return value


def _memory(value: object) -> object:
    try:
        size = parse_size(value) if isinstance(value, str) else 0
    except ValueError:
        size = 0
    if size <= 0:
        raise ValueError('a size such as "12 GiB"')
    return size


def _folders(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(entry, str) and entry for entry in value):
        raise ValueError('a list of folders such as ["~/models"]')
    return tuple(locations.expanded(entry) for entry in value)


def _keys(value: object) -> object:
    fits = isinstance(value, dict) and all(isinstance(keys, str) and keys for keys in value.values())
    if not isinstance(value, dict) or not fits:
        raise ValueError('a table of actions with their keys such as { send = "ctrl+o,enter" }')
    return tuple(value.items())


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings file as a value; `load` reads it, `template` writes one that documents itself."""

    speculation: str = _setting(
        "auto",
        _Choice(("auto", "draft", "ngram", "off")),
        '"auto"',
        'Who proposes tokens: "auto" (whatever pays, measured), "draft" (the draft model), "ngram" '
        '(look-up in the conversation), "off" (plain decoding).',
    )
    depth: int | None = _setting(
        None,
        _whole(1, 64, auto=True),
        '"auto"',
        'Tokens proposed in one round, 1 to 64, or "auto": chosen from measured costs and acceptance.',
    )
    ctx: int | None = _setting(
        None,
        _whole(256, auto=True),
        '"auto"',
        'Context length in tokens, or "auto": as much as fits in memory, within reason.',
    )
    threads: int | None = _setting(
        None, _whole(1, 1024, auto=True), '"auto"', 'CPU threads, or "auto": the physical cores.'
    )
    gpu_layers: int | None = _setting(
        None,
        _whole(0, auto=True),
        '"auto"',
        'Layers of the target placed on the GPU (0: none), or "auto": all that fit.',
    )
    memory_limit: int | None = _setting(
        None,
        _memory,
        '"12 GiB"',
        "The most memory the models may take, on each device. Left out: what is free, less a margin.",
    )
    exact: bool = _setting(
        False,
        _flag,
        "true",
        "Make replies independent of how many tokens are verified at once, bit for bit where the model's "
        "quantisation allows; costs some speed. Left out: false.",
    )
    temperature: float | None = _setting(
        None, _number(0, 10), "0.8", "Sampling temperature; 0 takes the likeliest token always."
    )
    top_k: int | None = _setting(None, _whole(0), "40", "Sample from the k likeliest tokens only; 0: all.")
    top_p: float | None = _setting(
        None, _number(0, 1), "0.95", "Sample from the likeliest tokens that together have this probability."
    )
    min_p: float | None = _setting(
        None, _number(0, 1), "0.05", "Drop tokens less likely than this fraction of the likeliest one."
    )
    repeat_penalty: float | None = _setting(
        None, _number(0.01, 10), "1.1", "Divide the logits of recent tokens by this; 1: off."
    )
    seed: int | None = _setting(
        None, _whole(0, 2**32 - 1), "42", "Seed of the random numbers. Left out: a fresh one for each reply."
    )
    system: str = _setting("", _text, '"Answer briefly."', "System prompt of new conversations. Left out: none.")
    theme: str = _setting(
        "textual-dark",
        _text,
        '"nord"',
        "The screen's colours: the name of a Textual theme (Ctrl+P, Theme lists them). Left out: textual-dark.",
    )
    mouse: bool = _setting(
        True, _flag, "false", "false leaves the mouse to the terminal, for its own selection of text."
    )
    idle_minutes: float = _setting(
        15.0, _number(0), "15", "Minutes after which an idle engine gives its memory back; 0: never."
    )
    model_dirs: tuple[Path, ...] = _setting(
        (), _folders, '["~/models"]', "More folders to look for model files in. They are only ever read."
    )
    keys: tuple[tuple[str, str], ...] = _setting(
        (),
        _keys,
        '{ new = "ctrl+o", help = "f1,f12" }',
        "Other keys for the chat's actions, by the names in the table of keys; a comma between several keys.",
    )


_FIELDS: Final = {field.name: field for field in dataclasses.fields(Settings)}


def parse(values: Mapping[str, object], source: Path) -> Settings:
    """Settings from a parsed file. Raises SpecchatError naming `source` and every wrong field."""
    good: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in values.items():
        try:
            good[name] = _checked(name, value)
        except SpecchatError as error:
            wrong.append(str(error))
    if wrong:
        raise SpecchatError(f"{locations.tilde(source)}: {'; '.join(wrong)}")
    return Settings(**good)


def _checked(name: str, value: object) -> object:
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        raise SpecchatError(f"there is no setting {name}" + (f" (did you mean {near[0]}?)" if near else ""))
    try:
        parsed: object = _FIELDS[name].metadata["parse"](value)
    except ValueError as error:
        raise SpecchatError(f"{name} must be {error}, not {_shown(value)}") from None
    return parsed


def value_of(name: str, text: str) -> object:
    """The value of one setting from `text` as a person types it: TOML, or a text without its quotes.

    Raises SpecchatError, which says what is allowed.
    """
    return _checked(name, _typed(name, text))


def line_of(name: str, text: str) -> str:
    """The line of a settings file that sets the same."""
    return f"{name} = {_as_toml(_typed(name, text))}"


def _typed(name: str, text: str) -> object:
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:  # TOMLDecodeError is one; so is more than one line
        return text
    is_text = name in _FIELDS and _FIELDS[name].metadata["parse"] is _text
    return text if is_text and not isinstance(value, str) else value  # a system prompt may be a number


def choices_of(name: str) -> tuple[str, ...]:
    """The values that a setting can have, where they can be counted."""
    parse = _FIELDS[name].metadata["parse"]
    if isinstance(parse, _Choice):
        return parse.names
    return ("true", "false") if parse is _flag else ()


def described(name: str) -> str:
    """What a setting does, in a sentence. Raises SpecchatError where there is none of that name."""
    if name not in _FIELDS:
        _checked(name, None)
    doc: str = _FIELDS[name].metadata["doc"]
    return doc


def read(path: Path | None = None) -> Mapping[str, object]:
    """What the user's file holds, as TOML has it; empty where there is none. Raises SpecchatError."""
    path = path or locations.settings_file()
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SpecchatError(f"cannot read {locations.tilde(path)}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecchatError(f"{locations.tilde(path)} is not valid TOML: {error}") from error


def load(path: Path | None = None) -> Settings:
    """The user's settings; the defaults where there is no file. Raises SpecchatError (see the module)."""
    path = path or locations.settings_file()
    return parse(read(path), path)


def template(values: Mapping[str, object] = MappingProxyType({})) -> str:
    """A settings file in which every field is described; those not among `values` are commented out."""
    lines = ["# Settings of specchat. Remove the # before a line to set it.", ""]
    for name, field in _FIELDS.items():
        lines += [f"# {line}" for line in textwrap.wrap(field.metadata["doc"], 98)]
        given = f"{name} = {_as_toml(values[name])}" if name in values else ""
        lines += [given or f"#{name} = {field.metadata['example']}", ""]
    return "\n".join(lines)


def _as_toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_as_toml(inner)}" for key, inner in value.items()) + " }"
    # JSON's texts, numbers, lists and booleans are TOML's too.
    return json.dumps(value, ensure_ascii=False)


def _shown(value: object) -> str:
    text = repr(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
