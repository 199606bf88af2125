"""Plain decoding here against llama-cpp-python's own `Llama.create_completion`, alternating within one run.

Contract: greedy, the same file, context length, cache types, attention, threads and prompt tokens on both sides; both
read the prompt anew each time. Its tokens are timed where it asks whether to stop, which costs it a microsecond;
streaming would slow it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specchat.engine.llama import CACHE_TYPES
from specchat.engine.policy import AdaptivePolicy, Mode, Speculation
from specchat.engine.replies import ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.engine.stats import ratio
from specchat.lab.prompts import Prompt
from specchat.lab.rig import Rig
from specchat.lab.runs import measure
from specchat.pairs.library import Step


@dataclass(frozen=True, slots=True)
class PeerRow:
    """One prompt: medians of tokens/s, and of their ratio within a repeat."""

    prompt: str
    tokens: int
    own: float
    peer: float
    ratio: float
    same: bool  # both wrote the same text


@dataclass(frozen=True, slots=True)
class _Turn:
    prompt: str
    tokens: int
    own: float
    peer: float
    same: bool


class Comparison:
    """One comparison; `run` yields progress, `rows` answers with what there is."""

    def __init__(self, rig: Rig, prompts: Sequence[Prompt], max_tokens: int, repeats: int) -> None:
        self._rig, self._prompts, self._n, self._repeats = rig, prompts, max_tokens, repeats
        self._turns: list[_Turn] = []

    def run(self) -> Iterator[Step]:
        """Measure."""
        yield Step("loading the model once more")
        peer = _load(self._rig)
        engine = self._rig.engine(AdaptivePolicy(Speculation(Mode.OFF)))
        options = ReplyOptions(SamplingSettings(temperature=0.0), self._n)
        total = len(self._prompts) * self._repeats
        for prompt in self._prompts:
            asked = self._rig.prompt(prompt.text)
            for repeat in range(self._repeats):
                yield Step(prompt.name, len(self._turns), total, in_bytes=False)
                if repeat % 2:
                    rate, text = _complete(peer, asked, self._n)
                run = measure(self._rig, engine, prompt, "plain", options, repeat)
                if not repeat % 2:
                    rate, text = _complete(peer, asked, self._n)
                if run.rate and rate:
                    same = self._rig.text(run.tokens, "ignore").strip() == text.strip()
                    self._turns.append(_Turn(prompt.name, len(run.tokens), run.rate, rate, same))

    def rows(self) -> tuple[PeerRow, ...]:
        """Medians, prompt by prompt."""
        names = dict.fromkeys(turn.prompt for turn in self._turns)
        return tuple(_row([turn for turn in self._turns if turn.prompt == name]) for name in names)


def _row(turns: Sequence[_Turn]) -> PeerRow:
    return PeerRow(
        prompt=turns[0].prompt,
        tokens=turns[0].tokens,
        own=median(turn.own for turn in turns),
        peer=median(turn.peer for turn in turns),
        ratio=median(turn.own / turn.peer for turn in turns),
        same=all(turn.same for turn in turns),
    )


def _load(rig: Rig) -> Any:
    from llama_cpp import Llama

    return Llama(
        str(rig.target.model.path),
        n_ctx=rig.target.n_ctx,
        n_threads=rig.target.threads,
        n_threads_batch=rig.target.threads,
        n_gpu_layers=rig.placement.gpu_layers,
        flash_attn=rig.placement.flash_attention is not False,
        type_k=CACHE_TYPES[rig.placement.type_k],
        type_v=CACHE_TYPES[rig.placement.type_v],
        verbose=False,
    )


def _complete(peer: Any, prompt: Sequence[int], n: int) -> tuple[float, str]:
    """(tokens/s after the first token, the text); no speed of a reply of one token."""
    times: list[float] = []

    def note(_tokens: object, _logits: object) -> bool:
        times.append(time.perf_counter())
        return False

    peer.reset()
    answer = peer.create_completion(list(prompt), max_tokens=n, temperature=0.0, stopping_criteria=note)
    rate = ratio(len(times) - 1, times[-1] - times[0]) if len(times) > 1 else None
    return rate or 0.0, answer["choices"][0]["text"]
