"""What the machine has, and how much of it a plan may take.

Contract: values only; `specchat.worker.machine` reads them. What a device may give is what it has free less a margin,
and never more than the user's limit. Memory that a GPU shares with the processor is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from specchat.units import GIB, MIB

RAM: Final = "RAM"
# Left free: for what grows while chatting (Python, the page cache that weights are read through, other programs).
_RAM_MARGIN: Final = (0.05, 256 * MIB, 2 * GIB)  # share of the whole, at least, at most
# For what a backend allocates besides the buffers it is asked for (a CUDA context and its pools: some 300 MiB).
_DEVICE_MARGIN: Final = (0.04, 64 * MIB, GIB)


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, or another machine's device."""

    name: str
    description: str
    free: int
    total: int
    shares_ram: bool = False  # its memory is the processor's: Apple silicon, an integrated GPU
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """Another specchat engine that holds memory now."""

    pid: int
    memory: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`ram_available`: what a new allocation may get now; `ram_bound` says what bounds it if not the machine itself."""

    ram_total: int
    ram_available: int
    ram_bound: str = ""
    devices: tuple[Device, ...] = ()
    others: tuple[Other, ...] = ()

    def device(self, name: str) -> Device:
        """The device of that name. KeyError if there is none."""
        return next(device for device in self.devices if device.name == name)


def ram_margin(machine: Machine) -> int:
    """RAM that stays free whatever is planned."""
    return _margin(machine.ram_total, *_RAM_MARGIN)


def margin(device: Device) -> int:
    """The device's memory that stays free whatever is planned."""
    return _margin(device.total, *_DEVICE_MARGIN)


def _margin(total: int, share: float, least: int, most: int) -> int:
    return min(max(round(total * share), least), most)


def budget(machine: Machine, limit: int | None = None) -> dict[str, int]:
    """The most bytes that may be taken of RAM and of each device, by name."""
    free = {RAM: machine.ram_available - ram_margin(machine)}
    free |= {device.name: device.free - margin(device) for device in machine.devices}
    return {name: max(0, bytes_ if limit is None else min(bytes_, limit)) for name, bytes_ in free.items()}


def within(limit: int, taken: Mapping[str, int], machine: Machine) -> Machine:
    """The machine as it is for what comes beside something that has `taken` so much of a user's limit already."""

    def left(name: str, free: int, kept: int) -> int:
        return min(free, max(0, limit - taken.get(name, 0)) + kept)

    return replace(
        machine,
        ram_available=left(RAM, machine.ram_available, ram_margin(machine)),
        devices=tuple(replace(one, free=left(one.name, one.free, margin(one))) for one in machine.devices),
    )


def missing(use: Mapping[str, int], machine: Machine, limit: int | None = None) -> dict[str, int]:
    """How many bytes are short, by name of RAM or device; empty where everything fits."""
    may = budget(machine, limit)
    taken = dict(use)
    for device in machine.devices:
        if device.shares_ram:
            taken[RAM] = taken.get(RAM, 0) + use.get(device.name, 0)
    return {name: taken[name] - may[name] for name in taken if taken[name] > may[name]}
