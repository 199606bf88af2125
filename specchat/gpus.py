"""The graphics cards of this machine, whatever llama.cpp was built for, and how to build it for them.

Contract: reads what the system lists; loads and installs nothing. A card that cannot be told is left out.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specchat import locations

_VENDORS: Final = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # PCI ids, as the kernel lists them
_REQUIREMENT: Final = "llama-cpp-python>=0.3.36,<0.4"  # as in pyproject.toml


@dataclass(frozen=True, slots=True)
class Backend:
    """One way for llama.cpp to use a card: its CMake option, and the toolkit's program that the build needs."""

    name: str
    option: str
    needs: str


CUDA: Final = Backend("CUDA", "-DGGML_CUDA=ON", "nvcc")
VULKAN: Final = Backend("Vulkan", "-DGGML_VULKAN=ON", "glslc")
ROCM: Final = Backend("ROCm", "-DGGML_HIP=ON", "hipcc")
METAL: Final = Backend("Metal", "-DGGML_METAL=ON", "xcrun")
_BACKENDS: Final = {"NVIDIA": CUDA, "AMD": ROCM, "Intel": VULKAN, "Apple": METAL}


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card and the backend that suits it best."""

    name: str
    backend: Backend


def find(drm: Path = Path("/sys/class/drm")) -> tuple[Card, ...]:
    """The cards of this machine."""
    if platform.system() == "Darwin":
        return (Card("Apple GPU", METAL),) if platform.machine() == "arm64" else ()
    named = _nvidia()
    vendors = [_VENDORS[vendor] for vendor in _drm_vendors(drm) if vendor in _VENDORS]
    # The driver's own names are better than the kernel's ids.
    others = [Card(f"{vendor} GPU", _BACKENDS[vendor]) for vendor in vendors if not (named and vendor == "NVIDIA")]
    return (*named, *others)


def _nvidia() -> tuple[Card, ...]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    names = answer.stdout.splitlines() if answer.returncode == 0 else []
    return tuple(Card(name.strip(), CUDA) for name in dict.fromkeys(names) if name.strip())


def _drm_vendors(drm: Path) -> Iterable[str]:
    vendors = []
    for path in sorted(drm.glob("card*/device/vendor")):
        try:
            vendors.append(path.read_text("ascii", errors="replace").strip())
        except OSError:
            continue
    return dict.fromkeys(vendors)


def install_command(backend: Backend) -> str:
    """The command that builds llama.cpp for it into this environment, in the words of this system's shell.

    The user's home folder is `$HOME`, which every shell reads within quotes too: the command may stand in a bug report.
    """
    python = re.sub(r"^~(?=[/\\])", "$HOME", locations.tilde(sys.executable))
    # pip takes a wheel from its cache whatever CMAKE_ARGS says, hence --no-cache-dir.
    pip = f'"{python}" -m pip install --no-cache-dir --force-reinstall --no-deps "{_REQUIREMENT}"'
    if platform.system() == "Windows":
        return f'$env:CMAKE_ARGS="{backend.option}"; & {pip}'
    return f'CMAKE_ARGS="{backend.option}" {pip}'


def has_toolkit(backend: Backend) -> bool:
    """Whether what the build needs is on the PATH."""
    return shutil.which(backend.needs) is not None
