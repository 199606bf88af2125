"""What this build of llama.cpp is and sees, and which models may be paired: JSON from its own process.

    python -m specchat.engine.probe build
    python -m specchat.engine.probe pair TARGET DRAFT
    python -m specchat.engine.probe drafts TARGET CANDIDATE...
    python -m specchat.engine.probe first TARGET CANDIDATE...

Contract: one JSON document on standard output; on failure one sentence on standard error and exit status 1.
Asked from a process of its own so that the caller stays without the native library and outlives a file that
crashes it. `specchat.probe` is the asking side.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from specchat.engine import vocabulary
from specchat.engine.llama import Model, ModelError, devices
from specchat.engine.native import api


def build() -> dict[str, object]:
    """Versions, what the build offers, and its devices with their memory in bytes."""
    return {
        "version": version("llama-cpp-python"),
        "features": api.llama_print_system_info().decode("utf-8", "replace").strip(),
        "gpu": bool(api.llama_supports_gpu_offload()),
        "rpc": bool(api.llama_supports_rpc()),
        "devices": [asdict(device) for device in devices()],
    }


def pair(target: Path, draft: Path) -> dict[str, object]:
    """Every rule for drafting with its outcome."""
    with Model.load(target, vocab_only=True) as t, Model.load(draft, vocab_only=True) as d:
        yes = "where llama.cpp keeps snapshots of its state" if t.is_hybrid else "yes"
        rules = [
            *vocabulary.checks(t, d),
            vocabulary.Check("the target can take tokens back", not _obstacle(t), _obstacle(t) or yes),
            vocabulary.Check("the draft can take tokens back", not d.rollback_obstacle, d.rollback_obstacle or "yes"),
        ]
    return {"checks": [asdict(check) for check in rules]}


def _obstacle(target: Model) -> str | None:
    """Why the target cannot speculate. A hybrid one can where llama.cpp keeps snapshots, which loading it tells."""
    return None if target.is_hybrid else target.rollback_obstacle


def drafts(target: Path, candidates: Sequence[Path], *, first: bool = False) -> dict[str, object]:
    """The target's own name, what keeps it from speculating, and for each candidate why it cannot draft for it.

    `first`: up to the first candidate that can.
    """
    found: dict[str, str | None] = {}
    with Model.load(target, vocab_only=True) as t:
        for path in candidates:
            found[str(path)] = _unfit(t, path)
            if first and found[str(path)] is None:
                break
        return {"name": t.name, "obstacle": _obstacle(t), "candidates": found}


def _unfit(target: Model, path: Path) -> str | None:
    try:
        with Model.load(path, vocab_only=True) as draft:
            return vocabulary.unfit(target, draft)
    except ModelError as error:
        return str(error)


def main(arguments: Sequence[str]) -> int:
    """The command line above."""
    try:
        match arguments:
            case ["build"]:
                answer = build()
            case ["pair", target, draft]:
                answer = pair(Path(target), Path(draft))
            case ["drafts", target, *candidates]:
                answer = drafts(Path(target), [Path(path) for path in candidates])
            case ["first", target, *candidates]:
                answer = drafts(Path(target), [Path(path) for path in candidates], first=True)
            case _:
                print("usage: build | pair TARGET DRAFT | drafts|first TARGET CANDIDATE...", file=sys.stderr)
                return 2
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
