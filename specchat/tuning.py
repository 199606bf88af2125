"""Settings changed while the chat runs, by the names that the settings file has.

Contract: pure values. A `Tuning` is what was opened and what was changed since; its `launch` is both together. It stays
valid for another pair: `of` puts the same changes on another `Launch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from specchat.session import Launch

SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
# Names of the settings -> fields of LoadSettings: these hold once models are loaded the next time.
LOADING: Final = {"ctx": "n_ctx"} | {name: name for name in ("threads", "gpu_layers", "memory_limit", "exact")}
NAMES: Final = (*SAMPLING, "system", *LOADING, "idle_minutes")
# Not of a `Tuning`: the session keeps the first, the screen the second.
SPECULATION: Final = ("speculation", "depth")
SCREEN: Final = ("theme", "mouse")
SETTABLE: Final = (*SPECULATION, *NAMES, *SCREEN)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was opened, and the settings changed since."""

    opened: Launch
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def launch(self) -> Launch:
        """What was opened, with the changes."""
        return _changed(self.opened, self.changes)

    def of(self, launch: Launch) -> Tuning:
        """The same changes of another launch."""
        return Tuning(launch, self.changes)

    def set(self, name: str, value: Any) -> Tuning:
        """One more change. `value` is as `specchat.settings` has it, `name` one of NAMES."""
        return Tuning(self.opened, {**self.changes, name: value})

    def reset(self, name: str) -> Tuning:
        """One change less."""
        return Tuning(self.opened, {key: value for key, value in self.changes.items() if key != name})

    def value(self, name: str) -> object:
        """A setting as it is now; None: the program decides."""
        launch = self.launch
        match name:
            case "system":
                return launch.system_prompt
            case "idle_minutes":
                return launch.idle_seconds / 60
        return getattr(launch.settings, LOADING[name]) if name in LOADING else getattr(launch.options.sampling, name)

    def source(self, name: str) -> str:
        """Where the value comes from, in a word or two."""
        return "this run" if name in self.changes else self.opened.sources.get(name, "default")


def _changed(launch: Launch, changes: Mapping[str, Any]) -> Launch:
    sampling = {name: value for name, value in changes.items() if name in SAMPLING}
    loading = {LOADING[name]: value for name, value in changes.items() if name in LOADING}
    options = replace(launch.options, sampling=replace(launch.options.sampling, **sampling))
    return replace(
        launch,
        options=options,
        settings=replace(launch.settings, **loading),
        system_prompt=changes.get("system", launch.system_prompt),
        idle_seconds=60 * changes.get("idle_minutes", launch.idle_seconds / 60),
    )
