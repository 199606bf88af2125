"""What `specchat doctor` looks at, one section after the other.

Contract: `sections` is a generator, so that what is known is shown while the next is looked at. A part that fails
becomes a line and, where the user should act, a fault; nothing raises. No secrets: of tokens and proxies only
that they are there.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import psutil

from specchat import __version__, gpus, locations, probe, settings
from specchat.errors import SpecchatError
from specchat.pairs import catalog
from specchat.pairs.library import Library, State
from specchat.units import format_bytes, format_memory

if TYPE_CHECKING:
    from specchat.pairs.hub import Hub

_HUB_PATIENCE: Final = 3.0  # seconds for each of connecting and answering
_GIVE_UP: Final = 8.0  # seconds in all: a name server that does not answer knows no time-out
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")


@dataclass(frozen=True, slots=True)
class Section:
    """A title, its lines of label and text, and what in it needs attention."""

    title: str
    lines: tuple[tuple[str, str], ...]
    faults: tuple[str, ...] = ()


def sections() -> Iterator[Section]:
    """Everything, in the order it is printed."""
    yield _program()
    yield _llama()
    yield _memory()
    yield _files()
    yield _models()
    yield _hub()
    yield _terminal()


def _program() -> Section:
    packages = ", ".join(f"{name} {_version(name)}" for name in ("textual", "huggingface-hub", "numpy"))
    return Section(
        "specchat",
        (
            ("version", __version__),
            ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
            ("system", f"{platform.platform()} {platform.machine()}, {os.cpu_count()} CPUs"),
            ("packages", packages),
        ),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


# -- llama.cpp ----------------------------------------------------------------------------------------------


def _llama() -> Section:
    try:
        build = probe.build()
    except SpecchatError as error:
        return Section("llama.cpp", (("build", str(error)),), ("llama.cpp does not load",))
    devices = [(device.name, _device(device)) for device in build.devices]
    return Section(
        "llama.cpp",
        (
            ("llama-cpp-python", build.version),
            ("features", build.features.replace(" = 1", "").strip(" |")),
            ("GPU", _gpu_line(build)),
            ("RPC", "built in" if build.rpc else "not in this build"),
            *devices,
            *_cards_unused(build, gpus.find()),
        ),
    )


def _device(device: probe.Device) -> str:
    if device.kind == "cpu":
        return device.description  # its free memory is the machine's total: no use to anyone
    memory = f"{format_memory(device.free)} of {format_memory(device.total)} free"
    return f"{device.description}, {device.kind}, {memory}"


def _gpu_line(build: probe.Build) -> str:
    if build.gpus:
        return "in use: " + ", ".join(device.name for device in build.gpus)
    return "this build can use one; none was found" if build.gpu else "not in this build"


def _cards_unused(build: probe.Build, cards: tuple[gpus.Card, ...]) -> Iterator[tuple[str, str]]:
    """The user's cards that this build does not use, with the command that changes it."""
    if build.gpus:
        return
    if not cards:
        yield "graphics card", "none found"
    for card in cards:
        yield "graphics card", f"{card.name}, unused: this build of llama.cpp has no {card.backend.name} device"
        if not gpus.has_toolkit(card.backend):
            yield "", f"first install the {card.backend.name} toolkit ({card.backend.needs} is not on the PATH), then:"
        yield "", gpus.install_command(card.backend)


# -- this machine -------------------------------------------------------------------------------------------


def _memory() -> Section:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return Section(
        "memory",
        (
            ("available", f"{format_memory(memory.available)} of {format_memory(memory.total)}"),
            ("swap", f"{format_memory(swap.free)} of {format_memory(swap.total)} free" if swap.total else "none"),
        ),
    )


def _files() -> Section:
    places = [(name, locations.tilde(path)) for name, path in locations.all_locations().items()]
    home = locations.home()
    lines = [*places, ("SPECCHAT_HOME", locations.tilde(home) if home else "not set")]
    faults = []
    for label, load in (("settings file", settings.load), ("catalogue", catalog.load)):
        problem = _problem(load)
        lines.append((label, problem or "valid"))
        faults += [problem] if problem else []
    return Section("files", tuple(lines), tuple(faults))


def _problem(load: Callable[[], object]) -> str:
    try:
        load()
    except SpecchatError as error:
        return str(error)
    return ""


def _models() -> Section:
    library = Library.default()
    folder = library.models
    while not folder.exists():
        folder = folder.parent
    writable = folder.is_dir() and os.access(folder, os.W_OK)
    lines = [
        ("disk", f"{format_bytes(library.disk_use())} used, {format_bytes(shutil.disk_usage(folder).free)} free"),
        ("folder", "can be written" if writable else "cannot be written"),
    ]
    faults = [] if writable else [f"{locations.tilde(folder)} cannot be written"]
    try:
        known = catalog.load()
    except SpecchatError:
        return Section("models", tuple(lines), tuple(faults))  # said under files
    for file in known.files.values():
        status = library.status(file)
        if status.state is not State.MISSING:
            lines.append((file.name, f"{status.state} {status.reason}".strip()))
        if status.state is State.DAMAGED:
            faults.append(f"{file.name} is damaged")
    return Section("models", tuple(lines), tuple(faults))


# -- the hub ------------------------------------------------------------------------------------------------


def _hub() -> Section:
    from specchat.pairs.hub import Hub  # takes the hub's client along, half a second

    hub = Hub.from_environment()
    proxies = [name for name in _PROXIES if os.environ.get(name) or os.environ.get(name.lower())]
    return Section(
        "hub",
        (
            ("host", hub.host),
            ("token", f"there is one {hub.token_from}" if hub.token else "none"),
            ("proxies", ", ".join(proxies) or "none"),
            ("reachable", "offline mode (HF_HUB_OFFLINE)" if hub.offline else _reach(hub)),
        ),
    )


def _reach(hub: Hub) -> str:
    """Ask for the size of a small public file, as `pull` would; a portal that answers for the hub is found out."""
    quick = replace(hub, connect_timeout=_HUB_PATIENCE, stall_timeout=_HUB_PATIENCE)
    answers: list[str] = []

    def ask() -> None:
        start = time.perf_counter()
        try:
            quick.ask("bartowski/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct-Q4_K_M.gguf")
            answers.append(f"yes, in {time.perf_counter() - start:.1f} s")
        except SpecchatError as error:
            answers.append(f"no: {error}")

    # Looking up a name has no time-out of its own, so it is waited for from outside.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_GIVE_UP)
    return answers[0] if answers else f"no answer within {_GIVE_UP:.0f} seconds"


# -- the terminal -------------------------------------------------------------------------------------------


def _terminal() -> Section:
    size = shutil.get_terminal_size()
    streams = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name).isatty()]
    around = [name for name, variable in (("tmux", "TMUX"), ("ssh", "SSH_CONNECTION")) if os.environ.get(variable)]
    return Section(
        "terminal",
        (
            ("TERM", os.environ.get("TERM", "not set")),
            ("program", os.environ.get("TERM_PROGRAM", "not told")),
            ("colours", _colours()),
            ("size", f"{size.columns}x{size.lines}"),
            ("encoding", sys.stdout.encoding),
            ("terminals", ", ".join(streams) or "none of stdin, stdout, stderr"),
            ("inside", ", ".join(around) or "neither tmux nor ssh"),
        ),
    )


def _colours() -> str:
    if os.environ.get("NO_COLOR"):
        return "off (NO_COLOR)"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "16 million"
    return "256" if "256" in os.environ.get("TERM", "") else "16 or fewer"
