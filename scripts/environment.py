"""The environment of this checkout: whether it will do, and its making.

Contract: `prepare` returns once `.venv` holds the project, everything it needs and a llama.cpp for the backend, and
does nothing while the stamp in there says so. What belongs to the making (log, lock, llama-cpp-python's wheels, one for
each backend) lies in `build/`. It raises SetupError with the sentence to show. Interrupted at any point, the next
`prepare` goes on or starts afresh; two at once take turns.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import NAMES, PYTHON, Machine, SetupError, choose_backend, jobs_for, look_around
from watch import Progress, clock, locked, run_logged, say

CPU_CORE_SECONDS = 540  # of compiling llama-cpp-python 0.3.36 for the CPU: 4.5 minutes on 2 cores
CMAKE_ARGS = {"cuda": "-DGGML_CUDA=ON", "vulkan": "-DGGML_VULKAN=ON", "rocm": "-DGGML_HIP=ON"}
LIBRARIES = {"cuda": "cuda", "hip": "rocm", "vulkan": "vulkan", "metal": "metal"}  # libggml-NAME -> backend


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an environment was made from and for."""

    project: str  # Project.hash
    python: str
    root: str  # scripts and the editable install hold absolute paths: a moved checkout needs a new environment
    backend: str
    test: bool  # with the test tools
    demo: bool = False  # the demo model was fetched


@dataclass(frozen=True, slots=True)
class Project:
    """What pyproject.toml says of installing. Its lint rules and the like may change without a new set-up."""

    hash: str
    llama: str  # the requirement on llama-cpp-python

    @staticmethod
    def parse(pyproject: str) -> Project:
        data = tomllib.loads(pyproject)
        parts = [data["build-system"], data["project"], data.get("tool", {}).get("hatch")]
        llama = next(name for name in data["project"]["dependencies"] if name.startswith("llama-cpp-python"))
        return Project(hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(), llama)


@dataclass(frozen=True, slots=True)
class Checkout:
    """Where things lie in a clone of the repository."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def specchat(self) -> Path:
        return self.venv / "bin" / "specchat"

    @property
    def stamp(self) -> Path:
        return self.venv / "specchat-setup.json"

    @property
    def build(self) -> Path:
        return self.root / "build"

    @property
    def log(self) -> Path:
        return self.build / "setup.log"

    @property
    def half_done(self) -> Path:
        """There while packages are laid into the environment, and after an interruption of that."""
        return self.build / "half-done"

    def read_stamp(self) -> Stamp | None:
        try:
            return Stamp(**json.loads(self.stamp.read_text())) if self.specchat.exists() else None
        except (OSError, ValueError, TypeError):
            return None

    def write_stamp(self, stamp: Stamp) -> None:
        new = self.stamp.with_suffix(".new")
        new.write_text(json.dumps(asdict(stamp), indent=2))
        new.replace(self.stamp)

    def holds_pip(self) -> bool:
        return self.python.exists() and (self.venv / f"lib/python{PYTHON}/site-packages/pip/__main__.py").exists()

    def installed_backend(self) -> str | None:
        """What the llama.cpp in the environment was built for."""
        files = [path.name for path in self.venv.glob(f"lib/python{PYTHON}/site-packages/llama_cpp/lib/*")]
        return backend_of(files) if files else None


def backend_of(files: Iterable[str]) -> str:
    """What a build of llama.cpp is for, told by the names of its libraries."""
    names = " ".join(files)
    return next((backend for name, backend in LIBRARIES.items() if f"libggml-{name}." in names), "cpu")


def telling(lines: list[str], end: int = 12) -> list[str]:
    """The lines that say why a build failed: the first errors of compiler or CMake, and the end.

    CMake puts its reason under the heading, in a few lines that may have empty ones between them.
    """
    places = [i for i, line in enumerate(lines[:-end]) if re.search(r"\berror:|CMake Error", line)][:4]
    told = {j for i in places for j in range(i, i + (6 if "CMake Error" in lines[i] else 1))}
    return [line for i, line in enumerate(lines) if (i in told or i >= len(lines) - end) and line.strip()]


def fits(stamp: Stamp | None, project: Project, root: Path, wanted: str | None, test: bool) -> bool:
    """Whether an environment with this stamp will do as it is."""
    if stamp is None or (stamp.project, stamp.python, stamp.root) != (project.hash, PYTHON, str(root)):
        return False
    return wanted in (None, stamp.backend) and stamp.test >= test


def prepare(place: Checkout, wanted: str | None, test: bool) -> None:
    """Makes the environment or brings it up to date, if need be. `wanted`: a backend, or None for as it is or best."""
    project = Project.parse((place.root / "pyproject.toml").read_text())
    if fits(place.read_stamp(), project, place.root, wanted, test):
        return
    place.build.mkdir(exist_ok=True)
    with locked(place.build / "setup.lock") as lock:
        # Another set-up may have made it while this one waited.
        if not fits(place.read_stamp(), project, place.root, wanted, test):
            SetUp(place, project, look_around(), lock).run(wanted, test)


@dataclass(frozen=True, slots=True)
class SetUp:
    """One set-up, while it holds the lock."""

    place: Checkout
    project: Project
    machine: Machine
    lock: int

    def run(self, wanted: str | None, test: bool) -> None:
        old = self.place.read_stamp()
        root = str(self.place.root)
        if old and not wanted:
            backend = old.backend
        else:
            backend, reason = choose_backend(self.machine, wanted)
            say(reason)
        self.place.log.write_text("")
        self.place.stamp.unlink(missing_ok=True)
        self.make_venv(foreign=old is not None and (old.python, old.root) != (PYTHON, root))
        tools = test or (old is not None and old.test)
        self.install(self.wheel(backend), backend, tools)
        demo = old is not None and old.demo
        self.place.write_stamp(Stamp(self.project.hash, PYTHON, root, backend, tools, demo))

    def make_venv(self, foreign: bool) -> None:
        anew = foreign or self.place.half_done.exists()
        if self.place.holds_pip() and not anew:
            return
        if importlib.util.find_spec("ensurepip") is None:
            raise SetupError(f"Making an environment needs {self.machine.missing('venv')}.")
        clear = ["--clear"] if anew else []
        with self.laying():
            command = [sys.executable, "-I", "-m", "venv", *clear, str(self.place.venv)]
            self.call(Progress("Making .venv"), command, {})

    def wheel(self, backend: str) -> Path:
        """llama-cpp-python for the backend: kept from before, or compiled."""
        flags = " ".join(filter(None, [os.environ.get("CMAKE_ARGS"), CMAKE_ARGS.get(backend)]))
        key = hashlib.sha256(f"{self.project.llama} {flags}".encode()).hexdigest()[:8]
        kept = self.place.build / "wheels" / f"{backend}-{key}"
        if not kept.exists():
            self.compile(backend, flags, kept)
        return next(kept.glob("*.whl"))

    def compile(self, backend: str, flags: str, kept: Path) -> None:
        if "compiler" not in self.machine.tools:
            raise SetupError(f"llama.cpp must be compiled, which needs {self.machine.missing('compiler')}.")
        jobs = jobs_for(backend)
        title = f"Compiling llama.cpp for {NAMES[backend]}"
        estimate = CPU_CORE_SECONDS / jobs if backend == "cpu" else None
        wait = f"about {clock(estimate)}" if estimate else "several minutes, up to an hour"
        kept_by_pip = "" if flags else ", or seconds if pip has kept it"
        say(f"{title}, {jobs} files at a time: {wait}{kept_by_pip}.\nAll of the output: {self.place.log}")
        env = {"CMAKE_ARGS": flags, "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
        if tool := self.machine.tools.get(backend):  # CMake finds the toolkit from its compiler
            env["PATH"] = os.pathsep.join([os.environ["PATH"], str(Path(tool).parent)])
        # pip's cache knows nothing of flags. Only a build without any may go there or come from there, and even that
        # one may have been put there by a build with flags elsewhere: hence the second try, which passes the cache by.
        part = self.place.build / "wheel.part"
        for cache in [["--no-cache-dir"]] if flags else [[], ["--no-cache-dir"]]:
            shutil.rmtree(part, ignore_errors=True)
            options = ["--verbose", "--no-deps", *cache, "--wheel-dir", str(part)]
            try:
                self.pip(Progress(title, estimate), ["wheel", *options, self.project.llama], env)
            except SetupError as error:
                raise SetupError(f"{error}\nWithout {NAMES[backend]}: --backend cpu" if flags else str(error)) from None
            if backend_of(zipfile.ZipFile(next(part.glob("*.whl"))).namelist()) == backend:
                kept.parent.mkdir(exist_ok=True)
                part.rename(kept)
                return
        raise SetupError(f"{title} gave a build for something else; see {self.place.log}.")

    def install(self, wheel: Path, backend: str, tools: bool) -> None:
        project = str(self.place.root) + ("[test]" if tools else "")
        with self.laying():
            if self.place.installed_backend() not in (None, backend):
                # The same version, so that pip would leave it.
                exchange = ["install", "--force-reinstall", "--no-deps", str(wheel)]
                self.pip(Progress(f"Exchanging llama.cpp for the {backend} build"), exchange, {})
            packages = ["install", str(wheel), "--editable", project]
            self.pip(Progress("Installing specchat and what it needs"), packages, {})
        check = [str(self.place.python), "-I", "-c", "import llama_cpp"]
        tried = subprocess.run(check, capture_output=True, text=True, check=False)
        if tried.returncode:
            shutil.rmtree(wheel.parent)
            reason = (tried.stderr.strip().splitlines() or [f"exit status {tried.returncode}"])[-1]
            raise SetupError(f"llama.cpp was built for {NAMES[backend]} but does not load: {reason}")

    @contextlib.contextmanager
    def laying(self) -> Iterator[None]:
        """An interruption inside leaves a mark, upon which the next set-up makes the environment afresh."""
        self.place.half_done.touch()
        try:
            yield
        except SetupError:  # pip gave up in good order
            self.place.half_done.unlink()
            raise
        self.place.half_done.unlink()

    def pip(self, progress: Progress, arguments: list[str], env: Mapping[str, str]) -> None:
        # The user's pip may be set to install elsewhere, or to ask questions that nobody would see.
        env = {"PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **env}
        self.call(progress, [str(self.place.python), "-I", "-m", "pip", *arguments], env)

    def call(self, progress: Progress, command: list[str], env: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="specchat-", ignore_cleanup_errors=True) as folder:
            env = {**os.environ, **env, "TMPDIR": folder}  # what an interrupted pip leaves goes as well
            status = run_logged(command, self.place.log, progress, env, self.lock)
        if status:
            said = self.place.log.read_text(errors="replace").rpartition("\n$ ")[2].splitlines()
            offline = " Is there a network connection?" if any("connection broken" in line for line in said) else ""
            log = f"{progress.title} failed.{offline} All of the output: {self.place.log}"
            raise SetupError("\n".join([*(f"  {line[:160]}" for line in telling(said)), log]))
