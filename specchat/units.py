"""Sizes as people write and read them."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as `12 GiB`, `800MB` or `1.5g` (a bare letter is binary).

    Raises ValueError for anything else.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as 12 GiB or 800 MB")
    return round(float(match[1]) * unit)


def format_bytes(count: float) -> str:
    """A file's size as download pages print it: decimal units, three figures (98.4 MB, 5.03 GB)."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB" if count < 999.5 else f"{count / 1000:.3g} TB"


def format_memory(count: float) -> str:
    """A memory size as system monitors print it: binary units with one decimal (5.9 GiB, 512 MiB)."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB"


def format_lack(count: int) -> str:
    """A memory size that is missing, rounded up: so much more is enough, and never 0 MiB."""
    if count >= GIB:
        return f"{-(-count * 10 // GIB) / 10:.1f} GiB"
    return f"{-(-count // MIB)} MiB"
