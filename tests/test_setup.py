"""The set-up from a fresh clone: what is chosen, what is said, and what survives interruption. Nothing is compiled."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import bootstrap
import environment
import machine
import psutil
import pytest
import watch
from hypothesis import given
from hypothesis import strategies as st
from machine import GIB, Gpu, Machine, SetupError

import specchat

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
NVIDIA = Gpu("NVIDIA H200", ("cuda", "vulkan"), "cuda")
AMD = Gpu("AMD GPU", ("rocm", "vulkan"), "vulkan")
MAC = Machine("Darwin", (Gpu("Apple M2", ("metal",), "metal"),), {"metal": "Metal", "compiler": "/usr/bin/c++"})
PYPROJECT = (ROOT / "pyproject.toml").read_text()


def linux(*gpus: Gpu, installer: str = "apt-get install", **tools: str) -> Machine:
    return Machine("Linux", gpus, tools, installer)


# --- which backend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "backend"),
    [
        (linux(), "cpu"),
        (linux(cuda="/usr/bin/nvcc", vulkan="/usr/bin/glslc"), "cpu"),  # toolkits without a GPU
        (linux(NVIDIA), "cpu"),
        (linux(NVIDIA, cuda="nvcc", vulkan="glslc"), "cuda"),
        (linux(NVIDIA, vulkan="glslc"), "vulkan"),
        (linux(AMD, cuda="nvcc"), "cpu"),  # the wrong toolkit
        (linux(AMD, rocm="hipcc", vulkan="glslc"), "rocm"),
        (linux(NVIDIA, AMD, rocm="hipcc"), "rocm"),
        (MAC, "metal"),
    ],
)
def test_the_best_backend_with_a_toolkit_is_built(found: Machine, backend: str) -> None:
    chosen, reason = machine.choose_backend(found, None)
    assert chosen == backend
    assert all(gpu.name in reason for gpu in found.gpus)


def test_a_gpu_without_toolkit_is_told_with_the_commands_that_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    _, reason = machine.choose_backend(linux(NVIDIA), None)
    assert "sudo apt-get install nvidia-cuda-toolkit" in reason
    assert "scripts/run --backend cuda" in reason
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _, reason = machine.choose_backend(linux(AMD, installer="pacman -S"), None)
    assert "pacman -S vulkan-headers" in reason
    assert "sudo" not in reason


def test_a_system_without_a_known_installer_still_hears_what_is_missing() -> None:
    _, reason = machine.choose_backend(linux(NVIDIA, installer=""), None)
    assert "install the CUDA toolkit, then" in reason


@pytest.mark.parametrize("wanted", ["cpu", "vulkan"])
def test_the_backend_asked_for_wins(wanted: str) -> None:
    assert machine.choose_backend(linux(NVIDIA, cuda="nvcc", vulkan="glslc"), wanted)[0] == wanted


@pytest.mark.parametrize(
    ("found", "wanted", "words"),
    [
        (linux(NVIDIA), "cuda", "apt-get install nvidia-cuda-toolkit"),
        (linux(), "vulkan", "libvulkan-dev"),
        (linux(), "metal", "Mac only"),
        (MAC, "cpu", "--gpu-layers 0"),
    ],
)
def test_a_backend_that_cannot_be_built_is_refused(found: Machine, wanted: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        machine.choose_backend(found, wanted)


def test_headers_of_vulkan_count_if_llama_cpp_compiles_with_them(tmp_path: Path) -> None:
    header = tmp_path / "include" / "vulkan" / "vulkan_core.h"
    header.parent.mkdir(parents=True)
    assert not machine.holds_vulkan(tmp_path)
    header.write_text("// Version of this file\n#define VK_HEADER_VERSION 275\n")
    assert not machine.holds_vulkan(tmp_path)  # SPIR-V's are missing
    (tmp_path / "include" / "spirv").mkdir()
    assert machine.holds_vulkan(tmp_path)
    header.write_text("// Version of this file\n#define VK_HEADER_VERSION 239\n")
    assert not machine.holds_vulkan(tmp_path)


# --- how many compilers at once ------------------------------------------------------------------------------


@given(cpus=st.floats(0.1, 512), memory=st.floats(0, 2048 * GIB), each=st.floats(0.5 * GIB, 4 * GIB))
def test_jobs_fit_cores_and_memory(cpus: float, memory: float, each: float) -> None:
    jobs = machine.parallel_jobs(cpus, memory, each)
    assert jobs >= 1
    assert jobs == 1 or (jobs <= cpus and jobs * each <= memory)


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        ({"cpu.max": "150000 100000", "memory.max": str(4 * GIB)}, (1.5, 4 * GIB)),
        ({"cpu.max": "max 100000", "memory.max": "max"}, (float("inf"), float("inf"))),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, (4, float("inf"))),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, (float("inf"), float("inf"))),
        ({}, (float("inf"), float("inf"))),
    ],
)
def test_a_containers_limits_are_read(tmp_path: Path, files: dict[str, str], limits: tuple[float, float]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert machine.cgroup_limits(tmp_path) == limits


# --- when there is something to do ---------------------------------------------------------------------------


def test_the_stamp_covers_what_decides_the_install_and_nothing_else() -> None:
    before = environment.Project.parse(PYPROJECT)
    assert before.llama.startswith("llama-cpp-python>=")
    assert environment.Project.parse(PYPROJECT.replace("line-length = 110", "line-length = 99")) == before
    assert environment.Project.parse(PYPROJECT.replace('"psutil>=5.9"', '"psutil>=6"')).hash != before.hash
    assert environment.Project.parse(PYPROJECT.replace('"pytest>=8"', '"pytest>=9"')).hash != before.hash


def test_an_environment_fits_until_something_differs() -> None:
    project = environment.Project.parse(PYPROJECT)
    stamp = environment.Stamp(project.hash, machine.PYTHON, str(ROOT), "cuda", test=False)

    def fits(stamp: environment.Stamp | None, wanted: str | None = None, test: bool = False) -> bool:
        return environment.fits(stamp, project, ROOT, wanted, test)

    assert fits(stamp)
    assert fits(stamp, "cuda")
    assert fits(replace(stamp, test=True))
    assert not fits(None)
    assert not fits(stamp, "cpu")
    assert not fits(stamp, test=True)
    assert not fits(replace(stamp, project="other"))
    assert not fits(replace(stamp, python="3.10"))
    assert not fits(replace(stamp, root="/elsewhere"))


@pytest.fixture
def place(tmp_path: Path) -> environment.Checkout:
    """A checkout with an environment in it that has nothing but a console script."""
    place = environment.Checkout(tmp_path)
    place.specchat.parent.mkdir(parents=True)
    place.specchat.touch()
    place.build.mkdir()
    return place


def test_a_stamp_is_read_back_and_a_damaged_one_counts_as_none(place: environment.Checkout) -> None:
    stamp = environment.Stamp("hash", "3.12", "/x", "cpu", test=True, demo=True)
    place.write_stamp(stamp)
    assert place.read_stamp() == stamp
    place.stamp.write_text(place.stamp.read_text()[:-9])
    assert place.read_stamp() is None
    place.stamp.write_text('{"project": "of another version"}')
    assert place.read_stamp() is None
    place.write_stamp(stamp)
    place.specchat.unlink()
    assert place.read_stamp() is None


# --- llama-cpp-python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "backend"),
    [
        (["llama_cpp/lib/libggml-cpu.so", "llama_cpp/lib/libggml-base.so", "include/ggml-cuda.h"], "cpu"),
        (["libggml-cpu.so", "libggml-cuda.so"], "cuda"),
        (["libggml-hip.so.0"], "rocm"),
        (["libggml-metal.dylib"], "metal"),
    ],
)
def test_a_builds_libraries_tell_its_backend(files: list[str], backend: str) -> None:
    assert environment.backend_of(files) == backend


def set_up(place: environment.Checkout, found: Machine) -> environment.SetUp:
    with (place.root / "lock").open("w") as lock:
        return environment.SetUp(place, environment.Project.parse(PYPROJECT), found, os.dup(lock.fileno()))


# Stands for the environment's Python: its "pip wheel" hands out the CUDA build that its cache holds, and makes the one
# that the flags ask for when told to pass the cache by.
PIP = """#!{python}
import os, pathlib, sys, zipfile
arguments = sys.argv[1:]
cuda = "--no-cache-dir" not in arguments or "CUDA" in os.environ["CMAKE_ARGS"]
folder = pathlib.Path(arguments[arguments.index("--wheel-dir") + 1])
folder.mkdir()
with zipfile.ZipFile(folder / "llama.whl", "w") as wheel:
    wheel.writestr("llama_cpp/lib/libggml-" + ("cuda" if cuda else "cpu") + ".so", "")
print(arguments)
"""


@pytest.fixture
def pip(place: environment.Checkout) -> None:
    place.python.write_text(PIP.format(python=sys.executable))
    place.python.chmod(0o755)


@pytest.mark.usefixtures("pip")
def test_a_cached_build_for_another_backend_is_not_taken(place: environment.Checkout) -> None:
    wheel = set_up(place, linux(compiler="c++")).wheel("cpu")
    assert environment.backend_of([str(path) for path in wheel.parent.glob("*")]) == "cpu"
    assert place.log.read_text().count("'wheel'") == 2


@pytest.mark.usefixtures("pip")
def test_a_gpus_build_passes_the_cache_by_and_is_kept(place: environment.Checkout) -> None:
    tools = set_up(place, linux(NVIDIA, compiler="c++", cuda="/opt/cuda/bin/nvcc"))
    wheel = tools.wheel("cuda")
    log = place.log.read_text()
    assert log.count("'wheel'") == log.count("'--no-cache-dir'") == 1
    assert tools.wheel("cuda") == wheel
    assert place.log.read_text() == log  # nothing was run


def test_without_a_compiler_the_command_that_brings_one_is_told(place: environment.Checkout) -> None:
    with pytest.raises(SetupError, match=r"a C\+\+ compiler \(.*apt-get install g\+\+\)"):
        set_up(place, linux()).wheel("cpu")


@pytest.mark.usefixtures("pip")
def test_a_failed_step_shows_its_error_and_the_end_of_its_log(place: environment.Checkout) -> None:
    noise = "for i in $(seq 99); do echo [$i/99]; done"
    place.python.write_text(f"#!/bin/sh\necho 'a.cpp:1: fatal error: no x.h'\n{noise}\necho gave up\nexit 3\n")
    with pytest.raises(SetupError, match=r"(?s)fatal error: no x.h.*gave up.*for the CPU failed.*setup\.log") as caught:
        set_up(place, linux(compiler="c++")).wheel("cpu")
    assert len(str(caught.value).splitlines()) < 20
    assert not list(place.build.glob("wheels/*"))


def test_the_reason_that_cmake_gives_under_its_heading_is_shown() -> None:
    heading = "CMake Error at ggml-cuda/CMakeLists.txt:178 (target_link_libraries):"
    reason = ["  Target ggml-cuda links to:", "", "    CUDA::cublas", "", "  but the target was not found."]
    lines = ["-- Found git", heading, *reason, "", *(f"-- step {i}" for i in range(99))]
    assert environment.telling(lines)[:4] == [heading, *(line for line in reason if line)]


# --- interruptions, and two at once --------------------------------------------------------------------------


def test_an_environment_left_half_done_is_made_afresh(place: environment.Checkout) -> None:
    tools = set_up(place, linux())
    with pytest.raises(KeyboardInterrupt), tools.laying():
        raise KeyboardInterrupt
    assert place.half_done.exists()
    tools.make_venv(foreign=False)
    assert place.holds_pip()
    assert not place.specchat.exists()
    assert not place.half_done.exists()


def test_a_step_that_gave_up_in_good_order_leaves_the_environment(place: environment.Checkout) -> None:
    with pytest.raises(SetupError), set_up(place, linux()).laying():
        raise SetupError("no network")
    assert not place.half_done.exists()


# Takes the lock, says so, and runs a command that itself starts another.
HOLDER = """
import os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from watch import Progress, locked, run_logged
with locked(Path("lock")) as lock:
    print("locked", flush=True)
    command = ["sh", "-c", "sleep {seconds} & echo $! > started; wait"]
    run_logged(command, Path("log"), Progress("Sleeping"), os.environ, lock)
"""


def holder(folder: Path, seconds: float) -> subprocess.Popen[str]:
    code = HOLDER.format(scripts=str(SCRIPTS), seconds=seconds)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=pipe, stderr=pipe, text=True)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def grandchild(folder: Path) -> int:
    """The process that the holder's command started."""
    started = folder / "started"
    wait_for(lambda: started.exists() and started.read_text().endswith("\n"))
    return int(started.read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_all_that_was_started(tmp_path: Path, number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)  # under nohup a child would inherit that it is ignored
    process = holder(tmp_path, seconds=60)
    signal.signal(number, before)
    pid = grandchild(tmp_path)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    wait_for(lambda: not alive(pid))


def test_two_set_ups_take_turns_and_the_second_says_that_it_waits(tmp_path: Path) -> None:
    first = holder(tmp_path, seconds=1)
    grandchild(tmp_path)
    _, said = holder(tmp_path, seconds=0).communicate(timeout=30)
    assert "Waiting for another set-up of this checkout" in said
    assert first.wait(timeout=30) == 0


def test_a_killed_set_up_keeps_the_lock_until_its_command_ends_and_no_longer(tmp_path: Path) -> None:
    first = holder(tmp_path, seconds=60)
    pid = grandchild(tmp_path)
    first.kill()
    first.communicate()
    with (tmp_path / "lock").open("a") as file:
        assert not watch.try_lock(file)
        os.kill(pid, signal.SIGKILL)  # the shell that waits for it ends as well
        wait_for(lambda: watch.try_lock(file))


# --- what is shown -------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_pips_output_tells_how_far_it_has_come() -> None:
    progress = watch.Progress("Compiling", estimate=270)
    progress.read("Collecting llama-cpp-python==0.3.36\n  Downloading llama_cpp_python-0.3.36.tar.gz (76.6 MB)\n")
    assert progress.line(4) == "Compiling: 0:04 of about 4:30, Downloading llama_cpp_python-0.3.36.tar.gz"
    progress.read("Collecting a\nCollecting b>=1\n")
    assert progress.phase == "Collecting b>=1"
    progress.read("Installing collected packages: a, b\n")
    assert progress.phase == "Installing collected packages"
    progress.read("  [1/193] /usr/bin/g++ -c a.cpp\n  [2/193] /usr/bin/g++ -c b.cpp\n")
    assert progress.line(65) == "Compiling: 1:05 of about 4:30, step 2 of 193"
    progress.read("  [7/9] a smaller build inside the build\n")
    assert progress.step == 2
    progress.read("  [100/193] /usr/bin/g++ -c c.cpp\n")
    assert progress.expected(100) == 193


def test_the_time_left_comes_from_the_steps_once_they_tell_better_than_the_estimate() -> None:
    progress = watch.Progress("Compiling", estimate=270, step=20, steps=100)
    assert progress.expected(10) == 270  # the first steps are short ones
    assert progress.expected(300) == 1500  # a slower machine than thought
    assert watch.Progress("Compiling", step=20, steps=100).line(10) == "Compiling: 0:10, step 20 of 100"
    assert watch.Progress("Compiling").expected(10) is None


def test_a_terminal_sees_one_line_redrawn_and_a_log_one_every_30_seconds() -> None:
    terminal = Terminal()
    line = watch.StatusLine(terminal)
    for _ in range(3):
        line.show(lambda _: "x" * 500)
    assert "\n" not in terminal.getvalue()
    assert all(len(text) < shutil.get_terminal_size().columns for text in terminal.getvalue().split("\r\033[K"))

    plain = io.StringIO()
    line = watch.StatusLine(plain)
    for elapsed in (1, 29, 31, 45, 62):
        line.started = time.monotonic() - elapsed
        line.show(watch.clock)
    assert plain.getvalue().split() == ["0:31", "1:02"]


# --- the launchers -------------------------------------------------------------------------------------------


def launch(folder: Path, pythons: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """scripts/run in a checkout without an environment, with a PATH that holds these scripts as Pythons."""
    shutil.copytree(SCRIPTS, folder / "clone" / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "bin"
    path.mkdir()
    for name in ("sh", "dirname"):
        (path / name).symlink_to(shutil.which(name) or "")
    for name, script in pythons.items():
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    command = [str(folder / "clone" / "scripts" / "run"), *arguments]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, check=False)


def test_a_python_too_old_is_named_with_how_to_get_another(tmp_path: Path) -> None:
    ended = launch(tmp_path, {"python3": "echo 3.9.6", "apt-get": ""}, "--help")
    assert ended.returncode == 1
    assert "needs Python 3.11 or newer; found 3.9.6 (" in ended.stderr
    assert "sudo apt-get install python3.11 python3.11-venv" in ended.stderr


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    ended = launch(tmp_path, {"dnf": ""}, "--help")
    assert ended.returncode == 1
    assert "found none" in ended.stderr
    assert "sudo dnf install python3.12" in ended.stderr


def test_the_first_python_that_runs_and_is_new_enough_is_taken(tmp_path: Path) -> None:
    good = f'exec "{sys.executable}" "$@"'
    pythons = {"python3": "echo 3.10.12", "python3.14": "echo not installed >&2; exit 127", "python3.11": good}
    ended = launch(tmp_path, pythons, "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "scripts/run [--backend NAME] [ARGS]" in ended.stdout


def test_an_unknown_backend_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    ended = launch(tmp_path, {"python3": f'exec "{sys.executable}" "$@"'}, "--backend", "opengl")
    assert ended.returncode == 1
    assert "no backend 'opengl'" in ended.stderr
    assert not (tmp_path / "clone" / ".venv").exists()


@pytest.mark.parametrize(
    ("arguments", "backend", "rest"),
    [
        ([], None, []),
        (["ask", "--backend", "cuda"], None, ["ask", "--backend", "cuda"]),  # after the first foreign word: not ours
        (["--backend", "cuda", "ask"], "cuda", ["ask"]),
        (["--backend=rocm", "--", "--help"], "rocm", ["--help"]),
        (["-x"], None, ["-x"]),
    ],
)
def test_the_scripts_options_come_first(arguments: list[str], backend: str | None, rest: list[str]) -> None:
    options = bootstrap.parse(arguments, None)
    assert (options.backend, options.rest, options.help) == (backend, rest, False)


def test_the_environment_variable_counts_unless_an_option_says_otherwise() -> None:
    assert bootstrap.parse([], "cuda").backend == "cuda"
    assert bootstrap.parse(["--backend", "cpu"], "cuda").backend == "cpu"
    assert bootstrap.parse([], "").backend is None
    with pytest.raises(SetupError, match="cuda"):
        bootstrap.parse(["--backend"], None)


def test_the_path_hint_works_as_printed(tmp_path: Path) -> None:
    specchat = tmp_path / "a clone" / "specchat"
    specchat.parent.mkdir()
    specchat.write_text("#!/bin/sh\necho started\n")
    specchat.chmod(0o755)
    folder = tmp_path / ".local" / "bin"
    hint = bootstrap.path_hint(specchat, tmp_path, f"/usr/bin:{folder}")
    subprocess.run(hint.partition(": ")[2], shell=True, check=True)
    assert subprocess.check_output([folder / "specchat"], text=True) == "started\n"
    assert "export PATH" in bootstrap.path_hint(specchat, tmp_path, "/usr/bin")


# --- the package ---------------------------------------------------------------------------------------------


def test_wheel_and_sdist_install_and_carry_the_catalogue(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path], cwd=ROOT, check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert {"models.toml", "LICENSE", "README.md", "scripts/run", "specchat/cli.py"} <= set(names)
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(next(tmp_path.glob("*.whl")))], check=True)
    assert (target / "specchat" / "models.toml").read_bytes() == (ROOT / "models.toml").read_bytes()
    assert not (target / "tests").exists()
    code = "import importlib.metadata, specchat; print(importlib.metadata.version('specchat'), specchat.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(target)}
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environ, text=True)
    assert printed.split() == [specchat.__version__, str(target / "specchat" / "__init__.py")]
