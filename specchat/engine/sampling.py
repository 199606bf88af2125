"""Logits -> token distribution; accept, reject, resample. Pure numpy, no model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """llama.cpp's defaults (common/common.h). Temperature 0 is greedy; 0, 1 and 0 switch top-k, top-p and min-p off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64  # tokens the penalty looks back over, prompt included
    seed: int | None = None  # None: fresh randomness for each reply
