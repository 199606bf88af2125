"""What verified, resumable downloading costs over the bare minimum: `specchat pull` against curl plus sha256sum.

Both fetch the same file from the same server on loopback, in turns, onto the same disk. The server is a process
of its own and sends with sendfile, so that it is not what is measured. Prints the best time of each, their
ratio, and the largest memory the pull used, which must not depend on the file's size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from specchat.units import MIB, format_memory
from tests.fakehub import FakeHub, Knobs, content_sha256

REPO, FILE = "bench/models-GGUF", "big.gguf"
PULL = [sys.executable, "-c", "from specchat.cli import main; main(prog_name='specchat')", "pull", "big"]


def serve(path: Path, sha256: str, pipe: Connection) -> None:
    """Serve the file until the pipe closes."""
    with FakeHub({(REPO, FILE): path}, Knobs(etag=sha256)) as hub:
        pipe.send(hub.url)
        pipe.poll(None)


def run(command: list[str], **environment: str) -> tuple[float, int]:
    """Seconds and peak resident bytes of a command."""
    begun, peak = time.monotonic(), 0
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, watched.memory_info().rss)
            except psutil.Error:
                break
            time.sleep(0.01)
    if process.returncode != 0:
        raise SystemExit(f"{command[0]} ended with status {process.returncode}")
    return time.monotonic() - begun, peak


def pull(url: str, folder: Path) -> tuple[float, int]:
    """One pull into an empty library."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    entry = f'[files.big]\nrepo = "{REPO}"\nfile = "{FILE}"\n[pairs.big]\ntarget = "big"\n'
    (folder / "models.toml").write_text(entry)
    return run(PULL, HF_ENDPOINT=url, SPECCHAT_HOME=str(folder), HF_HOME=str(folder / "hf"))


def plain(url: str, folder: Path) -> tuple[float, float, float, float]:
    """Seconds of curl, of writing through to the disk, of sha256sum, of hashing with the hashlib that pull uses."""
    target = folder.with_suffix(".curl")
    target.unlink(missing_ok=True)
    curl, _ = run(["curl", "-sS", "-f", "-o", str(target), f"{url}/{REPO}/resolve/main/{FILE}"])
    digest, _ = run(["sha256sum", str(target)])
    sync, _ = run(["sync", str(target)])
    begun = time.monotonic()
    content_sha256(target)
    return curl, sync, digest, time.monotonic() - begun


def best(rounds: int, measure: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """The round with the smallest sum."""
    return min((measure() for _ in range(rounds)), key=sum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file (default: 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many rounds (default: 3)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        source = folder / "source"
        with source.open("wb") as stream:
            for _ in range(options.mib):
                stream.write(os.urandom(MIB))
        ours, theirs = get_context("spawn").Pipe()
        server = get_context("spawn").Process(target=serve, args=(source, content_sha256(source), theirs), daemon=True)
        server.start()
        url = ours.recv()
        peaks = []

        def once() -> tuple[float]:
            seconds, peak = pull(url, folder / "home")
            peaks.append(peak)
            return (seconds,)

        curl, sync, digest, quick = best(options.rounds, lambda: plain(url, folder / "plain"))
        (seconds,) = best(options.rounds, once)
        ours.close()
        server.terminate()
    print(f"curl {curl:.2f} s, sha256sum {digest:.2f} s, sync {sync:.2f} s, hashlib {quick:.2f} s")
    print(f"specchat pull {seconds:.2f} s, hashed and written through to the disk")
    print(
        f"ratio to curl + sha256sum {seconds / (curl + digest):.2f}, with sync {seconds / (curl + digest + sync):.2f}"
    )
    print(f"ratio to curl + hashlib {seconds / (curl + quick):.2f}, with sync {seconds / (curl + quick + sync):.2f}")
    print(f"peak memory of the pull {format_memory(max(peaks))}")


if __name__ == "__main__":
    main()
