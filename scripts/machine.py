"""What this machine has for building llama.cpp, and what follows from it.

Contract: `look_around` gathers GPUs, toolkits and the system's installer into a `Machine`; what to build for
(`choose_backend`) and with how many compilers at once (`parallel_jobs`) is worked out from plain values.
Standard library alone: it runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
JOB_BYTES = {"cuda": 3 * GIB, "rocm": 3 * GIB}  # a compiler at its largest file; elsewhere below 1.5 GiB
NAMES = {"cpu": "the CPU", "cuda": "CUDA", "metal": "Metal", "vulkan": "Vulkan", "rocm": "ROCm"}
BACKENDS = tuple(NAMES)
NEEDS = {
    "compiler": "a C++ compiler",
    "venv": "Python's venv module",
    "cuda": "the CUDA toolkit",
    "vulkan": "glslc, SPIR-V's headers, and Vulkan's of 1.3.272 or newer",
    "rocm": "ROCm 6.1 or newer",
    "tmux": "tmux",
}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = {  # how each system installs what may be missing
    "apt-get install": {
        "compiler": "g++",
        "venv": f"python{PYTHON}-venv",
        "cuda": "nvidia-cuda-toolkit",
        "vulkan": "libvulkan-dev glslc spirv-headers",
        "rocm": "hipcc libhipblas-dev librocblas-dev",
        "tmux": "tmux",
    },
    "dnf install": {
        "compiler": "gcc-c++",
        "cuda": "cuda-toolkit",
        "vulkan": "vulkan-loader-devel glslc spirv-headers-devel",
        "rocm": "rocm-hip-devel hipblas-devel rocblas-devel",
        "tmux": "tmux",
    },
    "pacman -S": {
        "compiler": "gcc",
        "cuda": "cuda",
        "vulkan": "vulkan-headers vulkan-icd-loader shaderc spirv-headers",
        "rocm": "rocm-hip-sdk",
        "tmux": "tmux",
    },
    "zypper install": {"compiler": "gcc-c++", "vulkan": "vulkan-devel shaderc spirv-headers", "tmux": "tmux"},
    "brew install": {"tmux": "tmux"},
}


class SetupError(Exception):
    """Ends the set-up; its text is what the user reads."""


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    backends: tuple[str, ...]  # that can drive it, best first
    advice: str  # the backend to install a toolkit for when there is none


@dataclass(frozen=True, slots=True)
class Machine:
    system: str  # as platform.system() says it
    gpus: tuple[Gpu, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)  # backend, "compiler" or "tmux" -> its program
    installer: str = ""  # a key of PACKAGES

    def missing(self, what: str) -> str:
        """What is missing, and the command that installs it here."""
        packages = PACKAGES.get(self.installer, {}).get(what)
        sudo = "" if os.geteuid() == 0 or self.installer.startswith("brew") else "sudo "
        command = f"{sudo}{self.installer} {packages}" if packages else ""
        if self.system == "Darwin" and what == "compiler":
            command = "xcode-select --install"
        return f"{NEEDS[what]} ({command})" if command else NEEDS[what]


def output(*command: str) -> str:
    """What a command prints, or nothing if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_gpus(system: str) -> tuple[Gpu, ...]:
    if system == "Darwin":
        return (Gpu(output("sysctl", "-n", "machdep.cpu.brand_string") or "a Mac", ("metal",), "metal"),)
    names = output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    gpus = [Gpu(name, ("cuda", "vulkan"), "cuda") for name in dict.fromkeys(names)]
    # The kernel's list rather than rocm-smi: it knows the card before ROCm is installed. Vulkan is the lighter advice.
    vendors = {path.read_text().strip() for path in Path("/sys/class/drm").glob("card*/device/vendor")}
    if "0x1002" in vendors:
        gpus.append(Gpu("AMD GPU", ("rocm", "vulkan"), "vulkan"))
    if "0x8086" in vendors:
        gpus.append(Gpu("Intel GPU", ("vulkan",), "vulkan"))
    return tuple(gpus)


def find_tools(system: str) -> dict[str, str]:
    """The program that stands for each toolkit; CMake finds the rest from there."""
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/opt/cuda/bin", "/opt/rocm/bin"]
    names = {
        "compiler": (os.environ.get("CXX", "c++"), "c++", "g++", "clang++"),
        "cuda": ("nvcc",),
        "rocm": ("hipcc",),
        "vulkan": ("glslc",),
        "tmux": ("tmux",),
    }
    found = {what: find_program(programs, os.pathsep.join(folders)) for what, programs in names.items()}
    if system == "Darwin":
        # /usr/bin/c++ is always there on a Mac and may only offer to install the real one.
        found["compiler"] = found["compiler"] if output("xcode-select", "-p") else ""
        found["metal"] = "Metal"
    if not any(holds_vulkan(Path(p)) for p in (os.environ.get("VULKAN_SDK", ""), "/usr", "/usr/local") if p):
        found["vulkan"] = ""
    return {what: program for what, program in found.items() if program}


def holds_vulkan(prefix: Path) -> bool:
    """Whether headers are there that llama.cpp compiles with: it uses VK_EXT_layer_settings, new in 1.3.272."""
    header = prefix / "include" / "vulkan" / "vulkan_core.h"
    if not header.exists() or not (prefix / "include" / "spirv").exists():
        return False
    version = re.search(r"^#define VK_HEADER_VERSION (\d+)", header.read_text(), re.MULTILINE)
    return version is not None and int(version[1]) >= 272


def find_program(names: Iterable[str], path: str) -> str:
    return next((found for name in names if (found := shutil.which(name, path=path))), "")


def look_around() -> Machine:
    system = platform.system()
    installer = next((name for name in PACKAGES if shutil.which(name.split()[0])), "")
    return Machine(system, find_gpus(system), find_tools(system), installer)


def choose_backend(machine: Machine, wanted: str | None) -> tuple[str, str]:
    """The backend to build for, and the sentence that says why. SetupError if the one wanted cannot be built."""
    if machine.system == "Darwin" and wanted not in (None, "metal"):
        raise SetupError(
            "On a Mac llama-cpp-python always builds Metal in; to use the CPU alone start specchat with --gpu-layers 0."
        )
    if wanted == "metal" and machine.system != "Darwin":
        raise SetupError("Metal is there on a Mac only.")
    if wanted and wanted != "cpu" and wanted not in machine.tools:
        raise SetupError(f"Building for {NAMES[wanted]} needs what is not here: {machine.missing(wanted)}.")
    gpus = " and ".join(gpu.name for gpu in machine.gpus) or "no GPU"
    if wanted:
        return wanted, f"Found {gpus}; llama.cpp is built for {NAMES[wanted]}, as asked."
    for backend in (backend for gpu in machine.gpus for backend in gpu.backends):
        if tool := machine.tools.get(backend):
            return backend, f"Found {gpus} and {tool}; llama.cpp is built for {NAMES[backend]}."
    if not machine.gpus:
        return "cpu", "Found no GPU; llama.cpp is built for the CPU."
    advice = machine.gpus[0].advice
    return "cpu", (
        f"Found {gpus}, but no toolkit for it; llama.cpp is built for the CPU.\n"
        f"To use the GPU install {machine.missing(advice)}, then: scripts/run --backend {advice}"
    )


def cgroup_limits(cgroups: Path = Path("/sys/fs/cgroup")) -> tuple[float, float]:
    """The container's limits, as (CPUs, bytes of memory); infinite where there is none. Version 2, then version 1."""

    def numbers(*names: str) -> list[str]:
        return " ".join((cgroups / n).read_text() for n in names if (cgroups / n).exists()).split()

    quota = numbers("cpu.max") or numbers("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    memory = numbers("memory.max") or numbers("memory/memory.limit_in_bytes")
    cpus = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0].isdigit() else math.inf
    return cpus, int(memory[0]) if memory and memory[0].isdigit() else math.inf


def free_memory() -> float:
    """Bytes that can still be used: the kernel's estimate, or all there is where it gives none."""
    with contextlib.suppress(OSError):
        if found := re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text()):
            return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def parallel_jobs(cpus: float, memory: float, job_bytes: float) -> int:
    """Compilers to run at once: one for each core, but no more than fit in memory; at least one."""
    return max(1, int(min(cpus, memory / job_bytes)))


def jobs_for(backend: str) -> int:
    """Compilers to run at once on this machine as it is now."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, limit = cgroup_limits()
    return parallel_jobs(min(cpus, quota), min(free_memory(), limit), JOB_BYTES.get(backend, 1.5 * GIB))
