"""May this draft propose tokens for this target? llama.cpp's own rule, with the reason where it says no.

Contract: `checks` judges every rule (for a doctor's table); `mismatch` is one sentence for the first that fails, or
None; `unfit` also asks whether the draft can take proposals back. The rule is that of llama.cpp's
common/speculative.cpp. Both models may be loaded for their vocabulary only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from specchat.engine.llama import Model

# common/speculative.cpp: SPEC_VOCAB_MAX_SIZE_DIFFERENCE (padding differs between the sizes of one family) and
# SPEC_VOCAB_CHECK_START_TOKEN_ID (the first few are specials that families rename).
MAX_SIZE_DIFFERENCE: Final = 128
FIRST_COMPARED: Final = 5
# llama.h: enum llama_vocab_type
_TYPES: Final = {1: "SentencePiece", 2: "byte-level BPE", 3: "WordPiece", 4: "Unigram", 5: "RWKV", 6: "PLaMo 2"}


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, and what was found; `detail` names both sides where it failed."""

    rule: str
    passed: bool
    detail: str


def checks(target: Model, draft: Model) -> list[Check]:
    """Every rule, in llama.cpp's order."""
    return list(_checks(target, draft))


def mismatch(target: Model, draft: Model) -> str | None:
    """Why the two cannot be paired, in one sentence; None where they can."""
    failed = next((check for check in _checks(target, draft) if not check.passed), None)
    if failed is None:
        return None
    return f"{draft.path.name} cannot draft for {target.path.name}: {failed.detail}"


def unfit(target: Model, draft: Model) -> str | None:
    """Why the draft cannot propose for the target, in one sentence; None where it can.

    A draft proposes several tokens one after the other, and whichever of them are rejected must leave its cache. Of a
    running state llama.cpp keeps snapshots within one pass only: enough for a target, not for a draft.
    """
    if draft.rollback_obstacle:
        return f"{draft.path.name} cannot be a draft: {draft.rollback_obstacle}"
    return mismatch(target, draft)


def _checks(target: Model, draft: Model) -> Iterator[Check]:
    yield _kind(target, draft)
    yield _special("BOS", (target.add_bos, target.bos), (draft.add_bos, draft.bos))
    yield _special("EOS", (target.add_eos, target.eos), (draft.add_eos, draft.eos))
    yield _size(target, draft)
    yield _texts(target, draft)


def _kind(target: Model, draft: Model) -> Check:
    names = [_TYPES.get(model.vocab_type, f"type {model.vocab_type}") for model in (target, draft)]
    passed = target.vocab_type == draft.vocab_type
    return Check(
        "same kind of vocabulary",
        passed,
        names[0] if passed else f"its vocabulary is {names[1]}, the target's {names[0]}",
    )


def _special(name: str, target: tuple[bool, int | None], draft: tuple[bool, int | None]) -> Check:
    """The ids count only where they are added to a text."""
    rule = f"same {name}, added or not"
    if target[0] != draft[0]:
        does, does_not = ("target", "draft") if target[0] else ("draft", "target")
        return Check(rule, False, f"the {does} puts {name} on every text and the {does_not} does not")
    if target[0] and target[1] != draft[1]:
        return Check(rule, False, f"{name} is token {draft[1]} in the draft and {target[1]} in the target")
    return Check(rule, True, f"token {target[1]}, added" if target[0] else "not added")


def _size(target: Model, draft: Model) -> Check:
    difference = abs(target.n_vocab - draft.n_vocab)
    passed = difference <= MAX_SIZE_DIFFERENCE
    detail = f"the draft has {draft.n_vocab:,} tokens and the target {target.n_vocab:,}"
    if not passed:
        detail += f", more than {MAX_SIZE_DIFFERENCE} apart"
    return Check(f"sizes within {MAX_SIZE_DIFFERENCE}", passed, detail)


def _texts(target: Model, draft: Model) -> Check:
    rule = f"same token texts from id {FIRST_COMPARED} on"
    shorter = min(target.n_vocab, draft.n_vocab)
    for token in range(FIRST_COMPARED, shorter):
        if target.token_bytes(token) != draft.token_bytes(token):
            ours, theirs = target.token_text(token), draft.token_text(token)
            return Check(rule, False, f'token {token} is "{theirs}" in the draft and "{ours}" in the target')
    return Check(rule, True, f"{max(0, shorter - FIRST_COMPARED):,} compared")
