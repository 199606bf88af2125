"""Which drafter, and how deep: decided before every round from measured costs and measured acceptance.

Contract: `Policy.choose` is asked once a round and answers with a `Choice` (depth 0 is plain decoding); `Policy.record`
is told what the round did and what it cost. The past may decide the depth, never the random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from specchat.engine.acceptance import DraftAcceptance, Judged, Learned, NgramAcceptance, expected_tokens
from specchat.engine.costs import HORIZON, CostModel, Costs
from specchat.engine.drafters import JUDGED_WINDOW, Continue, Judgement, ModelDrafter, Offer, always
from specchat.engine.rounds import Round
from specchat.engine.stats import expected_tokens_per_pass


class Mode(StrEnum):
    """What the user asked for."""

    AUTO = "auto"
    DRAFT = "draft"
    NGRAM = "ngram"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Speculation:
    """The user's wish: a mode, and a depth. With a depth, DRAFT and NGRAM propose exactly so many and AUTO at most."""

    mode: Mode = Mode.AUTO
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What the next round does. `reason` is one short sentence for the status line, with numbers if there are any."""

    drafter: str  # "plain", "draft" or "ngram"
    depth: int
    reason: str = ""
    worth: Continue = always  # asked inside the round before each proposal is drawn
    judge: bool = False  # compare the idle draft model with the tokens just kept


class Policy(Protocol):
    """Decides each round's drafter and depth."""

    speculation: Speculation
    disturbed: bool  # other work of this program runs beside the engine: what rounds take now says nothing

    def begin(self, temperature: float, deepest: int | None = None, tokens: int | None = None) -> None:
        """A reply begins that is sampled at this temperature. Comes before everything else that concerns it.

        `deepest` is the most proposals that the target could take back, `tokens` the reply's limit; None: any number.
        """

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        """Answer for the next round; `offers` holds each drafter that can propose at least one token now."""

    def record(self, event: Round) -> None:
        """Learn from a finished round."""

    def judged(self, judgement: Judgement) -> None:
        """Learn from a comparison of the idle draft with the target."""

    def wants(self, drafter: str, unread: int = 1, /) -> bool:
        """Will this reply probably use the drafter, of which it must read `unread` tokens first?"""

    @property
    def plain_seconds(self) -> float | None:
        """What one plain token costs at this context length; None until measured in this run."""


class FixedPolicy:
    """One drafter at one depth, nothing learned; `auto` takes the draft model where there is one, else the n-grams.

    What `--speculation draft --depth 4` asks for, and what adaptive choices are measured against.
    """

    DEPTHS: Final[Mapping[str, int]] = {"draft": 4, "ngram": 15}

    def __init__(self, speculation: Speculation) -> None:
        self.speculation = speculation
        self.disturbed = False

    def begin(self, temperature: float, deepest: int | None = None, tokens: int | None = None) -> None:
        """Nothing depends on it."""

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        return fixed_choice(self.speculation, offers, self.DEPTHS)

    def record(self, event: Round) -> None:
        """Nothing to learn."""

    def judged(self, judgement: Judgement) -> None:
        """Nothing to learn."""

    def wants(self, drafter: str, _unread: int = 1, /) -> bool:
        return self.speculation.mode is Mode.AUTO or self.speculation.mode.value == drafter

    @property
    def plain_seconds(self) -> float | None:
        return None


def fixed_choice(speculation: Speculation, offers: Mapping[str, Offer], depths: Mapping[str, int]) -> Choice:
    """The first allowed drafter that offers anything, at the depth asked for."""
    for name in allowed(speculation.mode):
        if name in offers:
            depth = depths[name] if speculation.depth is None else speculation.depth
            return Choice(name, min(depth, offers[name].room), f"depth {depth}, as asked")
    return Choice("plain", 0, plain_reason(speculation.mode))


def allowed(mode: Mode) -> tuple[str, ...]:
    """The drafters that a mode may use."""
    return {Mode.OFF: (), Mode.AUTO: ("draft", "ngram")}.get(mode, (mode.value,))


def plain_reason(mode: Mode) -> str:
    """Why a round is plain when nothing was offered."""
    return "switched off" if mode is Mode.OFF else "nothing to propose here"


class AdaptivePolicy:
    """Every round takes the drafter and depth with the most expected tokens per second, plain included."""

    DEPTHS: Final[Mapping[str, int]] = {"draft": 16, "ngram": 32}  # the deepest that are priced
    # Plain is taken for two rounds now and then while drafting: the speed-up divides by what was measured there. By the
    # clock and not by tokens: where drafting brings four times plain's speed, that costs 1 % and not 3.
    STRETCH: Final = 2
    FIRST_STRETCH: Final = 8.0  # plain passes' time
    STRETCH_EVERY: Final = 192.0
    # Share of plain time that may go into judging an idle draft; it shrinks with each verdict that leaves no doubt.
    JUDGING: Final = 0.015
    LEAST_JUDGING: Final = 0.005
    SHRINKING: Final = 0.85
    ENOUGH: Final = 12  # tokens that are worth a judgement
    CLOSE: Final = 0.9  # of plain speed: within the error of a dozen tokens
    EVIDENCE: Final = 80.0  # judged tokens, before which doubt about a pair is cleared up at once
    LUMP: Final = 0.02  # of the time spent on this reply: no reply, however short, pays for judging in the long run
    REPRICE_EVERY: Final = 16  # plain rounds
    LONG: Final = 32  # longer matches and more room make no difference to a price
    # A drafter must beat plain by this much: the estimates are no better, and those of short matches still hopeful.
    GAIN: Final[Mapping[str, float]] = {"draft": 1.01, "ngram": 1.15}
    # A draft in use stays until it is this much worse than that: coming back, it must read what it missed.
    STAYING: Final = 0.02

    def __init__(self, speculation: Speculation, costs: Costs | None = None, learned: Learned | None = None) -> None:
        self.speculation = speculation
        self.disturbed = False
        self.costs = CostModel(costs or Costs())
        self.draft = DraftAcceptance(learned or Learned())
        self.ngram = NgramAcceptance()
        self._offers: Mapping[str, Offer] = {}
        self._prices: dict[tuple[object, ...], Option] = {}
        self._rounds = 0
        self._since_plain = self.STRETCH_EVERY - self.FIRST_STRETCH
        self._plain_run = 0  # plain tokens in a row
        self._in_use = False  # is it the draft that measuring plain speed would interrupt?
        # Seconds that judging may spend. An unknown pair is judged as soon as there are tokens to judge it by.
        self._allowance = math.inf if learned is None else 0.0
        self._judging = self.JUDGING
        self._spent = self._judged_for = 0.0  # seconds of this reply, and of them for judging
        self._room = self.LONG  # the most proposals that any round of this reply may have
        self._left = math.inf  # tokens to this reply's limit

    # -- deciding ------------------------------------------------------------------------------------------------

    def begin(self, temperature: float, deepest: int | None = None, tokens: int | None = None) -> None:
        self._room = min(self.LONG if deepest is None else deepest, self.LONG if tokens is None else tokens - 1)
        self._left = math.inf if tokens is None else tokens
        self.ngram = NgramAcceptance(temperature)
        # Most likely another subject: a draft that did not pay in the last reply has its usual chances in this one.
        if not self.wants("draft"):
            self.draft.renew()
        self._prices.clear()
        self._spent = self._judged_for = 0.0

    def choose(self, offers: Mapping[str, Offer]) -> Choice:
        self._offers = offers
        mode, depth = self.speculation.mode, self.speculation.depth
        if mode is Mode.OFF or (depth is not None and mode is not Mode.AUTO):
            return fixed_choice(self.speculation, offers, self.DEPTHS)
        options = [self._priced(name, offers[name]) for name in allowed(mode) if name in offers]
        best = max(options, key=lambda option: option.gain, default=None)
        if best is None:
            return Choice("plain", 0, plain_reason(mode), judge=self._judge_now())
        staying = self.STAYING if best.drafter == "draft" and self._in_use else 0.0
        if mode is Mode.AUTO and best.gain < self.GAIN[best.drafter] - staying:
            return Choice("plain", 0, best.why_not, judge=self._judge_now())
        # Rounds in which the draft only catches up are plain ones themselves.
        behind = best.drafter == "draft" and offers["draft"].unread > ModelDrafter.BATCH
        if not behind and self._since_plain >= self.STRETCH_EVERY:
            return Choice("plain", 0, "measuring plain speed")
        return self._draft_choice(best)

    def wants(self, drafter: str, unread: int = 1, /) -> bool:
        """As `choose` would answer with this drafter alone, and a match in hand."""
        mode = self.speculation.mode
        if mode is not Mode.AUTO:
            return mode.value == drafter
        return self._standing(drafter, unread) >= self.GAIN[drafter]

    @property
    def plain_seconds(self) -> float | None:
        return self.costs.plain_seconds

    def learned(self) -> Learned:
        """What is worth keeping for the next session with this pair."""
        return self.draft.learned()

    def _standing(self, drafter: str, unread: int = 1) -> float:
        """Its speed against plain, with a match in hand; 0 where it can propose nothing."""
        room = min(self.DEPTHS[drafter], self._room)
        return self._best(drafter, Offer(room, match=8, quotes=True, unread=unread)).gain if room > 0 else 0.0

    def _priced(self, name: str, offer: Offer) -> Option:
        """The best of an offer, as it was priced not many plain rounds ago.

        Between two plain rounds little changes, and pricing costs 1 % of the time of a fast model's pass. What is best
        with all of a reply's room is best wherever it has room: that is not priced anew for each of its last tokens.
        """
        key = (name, self.speculation.depth, offer.quotes, min(offer.match, self.LONG), offer.unread.bit_length())
        if key not in self._prices:
            self._prices[key] = self._best(name, replace(offer, room=self._room))
        option = self._prices[key]
        return option if option.depth <= offer.room else self._best(name, offer)

    def _best(self, name: str, offer: Offer) -> Option:
        """The depth with the most tokens per second. Costs are not convex: every depth is looked at."""
        deepest = min(self.DEPTHS[name], offer.room, self.speculation.depth or offer.room)
        if name == "draft":
            expected = expected_tokens(self.draft.rates(deepest))
        else:
            expected = self.ngram.expected(offer, deepest)
        seconds = self.costs.rounds(name, deepest, offer.unread)
        # A backlog costs each token the same whatever the depth: which is best does not depend on it.
        k = 1 + int(np.argmax(expected[1:] / seconds[1:]))
        plain = self.costs.plain_round()
        # Most replies end before their limit, in the middle of what is left of it for all that is known.
        backlog = self.costs.backlog(offer.unread, min(HORIZON, max(1.0, self._left / 2.0)))
        return Option(name, k, float(expected[k]), float(seconds[k]) / plain, backlog / plain, offer.unread)

    def _draft_choice(self, best: Option) -> Choice:
        reason = f"{best.expected:.1f} tokens expected for the time of {best.passes:.1f} passes"
        if best.drafter != "draft":
            return Choice(best.drafter, best.depth, reason)
        forced = self.speculation.mode is Mode.DRAFT
        return Choice("draft", best.depth, reason, EarlyStop(self.costs, self.draft, best.depth, at_least=int(forced)))

    # -- learning ------------------------------------------------------------------------------------------------

    def record(self, event: Round) -> None:
        offer = self._offers.get("draft", Offer(0))
        if not self.disturbed:
            self.costs.record(event, offer.unread)
        self._rounds += 1
        self._left -= len(event.tokens)
        self._spent += event.total_seconds
        if event.drafter != "plain" or self._rounds % self.REPRICE_EVERY == 0:
            self._prices.clear()
        if event.drafter == "plain" and not event.confidences:
            self._plain_run += 1
            self._allowance += self._judging * event.target_seconds
            if self._plain_run >= self.STRETCH:
                self._since_plain = 0.0
            self._in_use &= self._plain_run <= self.STRETCH
        else:
            self._plain_run = 0
            self._since_plain += event.total_seconds / self.costs.plain_round()
            self._in_use |= event.drafter != "ngram"
        outcomes = enumerate(event.confidences[: event.tested])
        self.draft.add([Judged(i, confidence, float(i < event.accepted)) for i, confidence in outcomes])
        if event.declined is not None:
            self.draft.add([Judged(event.proposed, event.confidences[-1], event.declined)])
        self._record_ngram(event)

    def judged(self, judgement: Judgement) -> None:
        if not judgement.tokens:
            return
        before = self._standing("draft")
        self._prices.clear()
        self.draft.add([Judged(None, confidence, accepted) for confidence, accepted in judgement.tokens])
        if judgement.step_seconds is not None and not self.disturbed:
            self.costs.draft.record(1, judgement.step_seconds)
        after = self._standing("draft")
        in_doubt = after >= self.CLOSE or before >= self.CLOSE
        self._allowance = math.inf if in_doubt and self.draft.evidence < self.EVIDENCE else 0.0
        self._judging = self.JUDGING if in_doubt else max(self.LEAST_JUDGING, self._judging * self.SHRINKING)

    def _record_ngram(self, event: Round) -> None:
        """Its own round, or for free: would the look-up have proposed what the target then wrote?"""
        offer = self._offers.get("ngram")
        if offer is None:
            return
        if event.drafter == "ngram":
            self.ngram.add_round(offer, event.proposed, event.accepted)
        else:
            self.ngram.add(offer, [event.tokens[0] == offer.token])

    def _judge_now(self) -> bool:
        """Is there time left over for running the idle draft over what it missed?"""
        offer = self._offers.get("draft")
        if offer is None or self.speculation.mode is not Mode.AUTO or self._plain_run < self.ENOUGH:
            return False
        cost = self.costs.draft.seconds(min(offer.unread, JUDGED_WINDOW))
        bearable = math.isinf(self._allowance) or self._judged_for + cost <= self.LUMP * self._spent
        if not bearable or cost > self._allowance:
            return False
        self._judged_for += cost
        return True


@dataclass(frozen=True)
class Option:
    """A drafter at a depth, priced."""

    drafter: str
    depth: int
    expected: float  # tokens
    passes: float  # plain rounds in whose time they come
    backlog: float = 0.0  # of that time, for each token more: what the drafter has to read first
    unread: int = 1  # tokens of that

    @property
    def gain(self) -> float:
        """Speed against plain."""
        return self.expected / (self.passes + self.backlog * self.expected)

    @cached_property
    def why_not(self) -> str:
        """Why plain is better, in one sentence with numbers."""
        what = "drafting" if self.drafter == "draft" else "copying"
        if self.gain >= 1.0:
            return f"{what} {self.depth} promises {100 * (self.gain - 1):.0f} % more, which is too close to call: plain"
        if self.expected >= self.passes:
            return f"the {self.unread:,} tokens that the draft missed cost more to read than it would gain: plain"
        needed, now = (100 * acceptance_for(tokens, self.depth) for tokens in (self.passes, self.expected))
        digits = int(round(needed) == round(now))
        return (
            f"{what} {self.depth} and verifying {self.depth + 1} costs {self.passes:.1f} passes here; "
            f"break-even acceptance {needed:.{digits}f} %, now {now:.{digits}f} %: plain"
        )


class EarlyStop:
    """Asked before each proposal of one round is drawn: is it worth going on, given how sure the draft is here?

    Compares the tokens per second of stopping now with those of the best depth still ahead.
    """

    def __init__(self, costs: CostModel, acceptance: DraftAcceptance, depth: int, at_least: int) -> None:
        self._acceptance = acceptance
        self._at_least = at_least
        self._step = costs.draft.seconds(1)
        self._verifying = costs.rounds("plain", depth).tolist()
        self._rates = acceptance.rates(depth).tolist()
        self._expected = 1.0
        self._reach = 1.0  # probability that everything proposed so far is accepted

    def __call__(self, index: int, confidence: float) -> bool:
        here = self._reach * self._acceptance.given(confidence)
        if index >= self._at_least and not self._pays(index, here):
            return False
        self._reach = here
        self._expected += here
        return True

    def _pays(self, index: int, here: float) -> bool:
        # Stopping wastes the step that this confidence came from; going on to depth d takes d - index - 1 more.
        spent = (index + 1) * self._step
        stopping = self._expected / (spent + self._verifying[index])
        expected, reach = self._expected, here
        for depth in range(index + 1, len(self._verifying)):
            expected += reach
            if expected / (spent + self._verifying[depth]) > stopping:
                return True
            spent += self._step
            reach *= self._rates[depth] if depth < len(self._rates) else 0.0
        return False


def acceptance_for(tokens: float, depth: int) -> float:
    """The acceptance at which a round of `depth` proposals brings so many tokens, were it the same at each of them.

    Solves (1 - a^(k+1)) / (1 - a) = tokens; 1 where even full acceptance brings fewer. For as many tokens as the
    round costs plain passes it is the break-even acceptance.
    """
    if tokens >= depth + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2.0
        low, high = (middle, high) if expected_tokens_per_pass(middle, depth) < tokens else (low, middle)
    return high
