"""The options that several commands share, under the names that llama.cpp's users type.

Contract: importing this loads click and nothing heavy, so that completing a command line is quick. What the options
come to, together with settings and catalogue, is `specchat.commands.opening`'s business.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from specchat.units import parse_size

Function = TypeVar("Function", bound=Callable[..., Any])

# As llama.cpp's own programs offer them (engine/context.py, which is not imported here).
CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_FILE: Final = click.Path(path_type=Path)
_SAMPLING_HELP: Final = "llama.cpp's default unless the pair has its own"


@dataclass(frozen=True, slots=True)
class Options:
    """What was typed; None (or an empty tuple) where nothing was."""

    target: Path | None = None
    draft: Path | None = None
    pair: str | None = None
    speculation: str | None = None
    depth: int | None = None
    exact: bool | None = None
    ctx: int | None = None
    max_tokens: int | None = None
    threads: int | None = None
    gpu_layers: int | None = None
    devices: str | None = None
    memory_limit: int | None = None
    rpc: str | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    seed: int | None = None
    system: str | None = None
    files: tuple[Path, ...] = ()

    def models(self, name: str | None = None) -> bool:
        """Whether it was said what to open, by the argument `name` or an option."""
        return bool(name or self.pair or self.target)

    @classmethod
    def among(cls, given: Mapping[str, Any]) -> Options:
        """Those of them that a command was given, among others of its own."""
        return cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})


def is_path(name: str) -> bool:
    """Whether what was given as "pair or file" is a file's path."""
    return name.endswith(".gguf") or "/" in name or os.sep in name


if TYPE_CHECKING:
    from specchat.pairs.catalog import Catalog, Pair

    _ParamType = click.ParamType[str]
else:  # older clicks have no type parameter here
    _ParamType = click.ParamType


class PairName(_ParamType):
    """The name of a pair, completed from the catalogue."""

    name = "pair"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Raises click's own error for a name that is none."""
        if not str(value).strip():
            self.fail("the name is empty; `specchat pull` shows the pairs there are.", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Pairs whose names begin so."""
        del ctx, param
        from specchat.errors import SpecchatError
        from specchat.pairs import catalog

        try:
            known = catalog.load()
        except SpecchatError:
            return []  # the command itself will say what is wrong with the catalogue
        wanted = incomplete.lower()
        pairs = [pair for pair in known.pairs.values() if pair.name.lower().startswith(wanted)]
        return [CompletionItem(pair.name, help=pair.description) for pair in self.offered(known, pairs)]

    def offered(self, known: Catalog, pairs: list[Pair]) -> list[Pair]:
        """Those of `pairs` that the command can do something with."""
        del known
        return pairs


class PairToRemove(PairName):
    """The name of a pair, completed from those that can be removed."""

    def offered(self, known: Catalog, pairs: list[Pair]) -> list[Pair]:
        """Pairs of the user's own, and those of which there is something to delete."""
        from specchat.pairs.library import Library

        library = Library.default()
        return [pair for pair in pairs if pair.own or library.removal(known, pair).delete]


class PairOrFile(PairName):
    """A pair's name, or the path of a GGUF file."""

    name = "pair|file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Pairs, or else files."""
        return super().shell_complete(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


class Number(click.FloatRange):
    """A number in a range, which "nan" is not: no comparison tells it from one that is."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click's own error for anything else."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class Size(_ParamType):
    """A memory size such as 12GiB; becomes bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises click's own error for anything else."""
        try:
            size = value if isinstance(value, int) else parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size <= 0:
            self.fail(f"{value!r} is no memory at all", param, ctx)
        return size


_TARGET: Final = click.option("-m", "--target", metavar="FILE", type=_FILE, help="The target: a GGUF file.")
_DRAFT: Final = click.option(
    "-md",
    "--draft",
    metavar="FILE",
    type=_FILE,
    help="The draft model: a GGUF file; auto: the smallest one here that can be it.",
)
_PAIR: Final = click.option("--pair", metavar="NAME", type=PairName(), help="The pair to open, by its name.")
_WHAT: Final = click.argument("name", required=False, metavar="[PAIR | FILE.gguf]", type=PairOrFile())
_MACHINE: Final = (
    click.option("-c", "--ctx", metavar="N", type=click.IntRange(256), help="Context length in tokens."),
    click.option(
        "-t", "--threads", metavar="N", type=click.IntRange(1, 1024), help="CPU threads; else the physical cores."
    ),
    click.option(
        "-ngl",
        "--gpu-layers",
        metavar="N",
        type=click.IntRange(0),
        help="Layers placed on the GPU; else as many as fit, where there is one.",
    ),
    click.option(
        "--device",
        "devices",
        metavar="NAME[,NAME]",
        help="Devices to use, as `specchat doctor` names them; CPU: no GPU.",
    ),
    click.option(
        "--memory-limit", metavar="SIZE", type=Size(), help="The most that may be taken of RAM and each device."
    ),
    click.option(
        "--rpc",
        metavar="HOST:PORT[,...]",
        help="Use the devices of other machines too, on which `specchat rpc-worker` runs.",
    ),
    click.option(
        "-ctk",
        "--cache-type-k",
        metavar="TYPE",
        type=click.Choice(CACHE_TYPES),
        help="Type of the target's key cache: f16, or a smaller one that changes what it says a little.",
    ),
    click.option(
        "-ctv", "--cache-type-v", metavar="TYPE", type=click.Choice(CACHE_TYPES), help="The same of the value cache."
    ),
)


_OPTIONS: Final = (
    _TARGET,
    _DRAFT,
    _PAIR,
    click.option(
        "--speculation",
        type=click.Choice(["auto", "draft", "ngram", "off"]),
        help="Who proposes tokens: whatever pays, the draft model, n-gram look-up, or nobody (plain).",
    ),
    click.option("--depth", metavar="K", type=click.IntRange(1, 64), help="Tokens proposed in one round."),
    click.option(
        "--exact",
        is_flag=True,
        default=None,
        help="The same bits however many tokens are verified at once, where the quantisation allows.",
    ),
    click.option("-n", "--max-tokens", metavar="N", type=click.IntRange(1), help="The most tokens of a reply."),
    *_MACHINE,
    click.option(
        "--temp",
        "temperature",
        metavar="T",
        type=Number(0, 10),
        help=f"Sampling temperature; 0 takes the likeliest token. {_SAMPLING_HELP}, like the next four.",
    ),
    click.option("--top-k", metavar="K", type=click.IntRange(0), help="Sample from the K likeliest; 0: all."),
    click.option(
        "--top-p",
        metavar="P",
        type=Number(0, 1),
        help="Sample from the likeliest that together have this probability.",
    ),
    click.option(
        "--min-p",
        metavar="P",
        type=Number(0, 1),
        help="Drop tokens less likely than this fraction of the likeliest.",
    ),
    click.option("--repeat-penalty", metavar="R", type=Number(0.01, 10), help="Penalty of recent tokens; 1: off."),
    click.option("-s", "--seed", metavar="N", type=click.IntRange(0, 2**32 - 1), help="Random seed; else a fresh one."),
    click.option("-sys", "--system", metavar="TEXT", help="System prompt."),
    click.option(
        "-f",
        "--file",
        "files",
        metavar="FILE",
        type=_FILE,
        multiple=True,
        help="A text file to put before the first message; may be repeated.",
    ),
)


def shared_options(function: Function) -> Function:
    """Give a command these options; it receives the fields of `Options` as keyword arguments."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def model_options(function: Function) -> Function:
    """Give a measuring command those that say what to open and where, and its argument `name`."""
    for option in reversed((_WHAT, _TARGET, _DRAFT, _PAIR, *_MACHINE)):
        function = option(function)
    return function


# For commands that measure: at 0 every mode writes the same text.
greedy_unless_told: Final = click.option(
    "--temp",
    "temperature",
    metavar="T",
    type=Number(0, 10),
    default=0.0,
    show_default=True,
    help="Sampling temperature.",
)


def target_options(function: Function) -> Function:
    """The same without the draft, for a command that makes one."""
    for option in reversed((_WHAT, _TARGET, _PAIR, *_MACHINE)):
        function = option(function)
    return function
