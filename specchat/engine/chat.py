"""A conversation turned into tokens and a reply turned back into text.

Contract: `Engine.reply(messages, options)` renders the target's own template, without the oldest turns where not all
of them fit (engine/trimming.py has the rule), reuses the longest prefix that the cache already holds, reads the rest,
runs the decoder's rounds and yields events; it may be abandoned at any event (`close()` on the generator) and leaves
both caches consistent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from specchat.engine import trimming
from specchat.engine.along import ReadingAlong
from specchat.engine.cache import Cancelled, RollbackError
from specchat.engine.costs import Costs
from specchat.engine.decoder import Decoder
from specchat.engine.drafters import Drafter, ModelDrafter, NgramDrafter, all_drafters, common_prefix
from specchat.engine.policy import AdaptivePolicy, Policy, Speculation
from specchat.engine.replies import (
    Event,
    Finished,
    Generated,
    Message,
    Notice,
    PromptTooLong,
    Reading,
    ReplyOptions,
)
from specchat.engine.rounds import Origin, Round
from specchat.engine.sampling import margin
from specchat.engine.stats import Figures, Prompt, Stats
from specchat.engine.templates import ChatTemplate, Rendered
from specchat.engine.text import Piece, ReplyText

if TYPE_CHECKING:
    from specchat.engine.llama import Context, Model


class Engine:
    """A target, maybe with its draft, writing replies one at a time."""

    def __init__(
        self,
        target: Model,
        target_context: Context,
        draft: Model | None,
        draft_context: Context | None,
        policy: Policy,
        after_reply: Callable[[], None] = lambda: None,
        pressure: Callable[[], str] = lambda: "",
    ) -> None:
        """Takes the models and contexts over: `close` closes them. The pair is compatible (vocabulary.py).

        `after_reply` is called when a reply ends, however it does: what the policy learned may then be kept.
        `pressure` is asked between two passes whether the draft must be released, and answers with the reason.
        """
        self._target, self._context = target, target_context
        self._draft, self._draft_context = draft, draft_context
        self._policy = policy
        self._after_reply = after_reply
        self._pressure = pressure
        self.template = ChatTemplate(target)
        self._notices = [self.template.notice] if self.template.notice else []
        self._drafters = self._make_drafters()
        self._answer_now = False
        self._left_out: tuple[trimming.Turn, ...] = ()  # of the latest conversation, for want of room
        self._sizes: dict[str, int] = {}  # tokens of its texts
        self.draft_failure = ""  # why the draft had to be given up, other than for the pressure

    def _make_drafters(self) -> dict[str, Drafter]:
        if self._context.rollback_limit == 0:
            return {}
        return all_drafters(self._draft_context, self._target.n_vocab, self._target.is_eog)

    @property
    def speculation(self) -> Speculation:
        """What the user asked for. May be set from any thread, and holds from the next round on."""
        return self._policy.speculation

    @speculation.setter
    def speculation(self, wish: Speculation) -> None:
        self._policy.speculation = wish

    @property
    def disturbed(self) -> bool:
        """Whether other work of this program disturbs the clocks: nothing is then learned from what rounds take."""
        return self._policy.disturbed

    @disturbed.setter
    def disturbed(self, is_so: bool) -> None:
        self._policy.disturbed = is_so

    # ---- the draft, which may come and go

    @property
    def target_context(self) -> Context:
        """The target with its cache."""
        return self._context

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft model now."""
        return self._draft_context is not None

    @property
    def costs(self) -> Costs | None:
        """What was measured of the models at load; None where the policy does not ask."""
        return self._policy.costs.at_load if isinstance(self._policy, AdaptivePolicy) else None

    def attach_draft(
        self, draft: Context, policy: Policy, after_reply: Callable[[], None], pressure: Callable[[], str]
    ) -> None:
        """Take a draft over, with a policy that knows its costs. Between two replies only."""
        self._draft, self._draft_context = draft.model, draft
        self._pressure = pressure
        policy.speculation, policy.disturbed = self._policy.speculation, self._policy.disturbed
        self._policy, self._after_reply = policy, after_reply
        self._drafters = self._make_drafters()
        self.draft_failure = ""

    def relieve(self) -> bool:
        """Release the draft if memory is short; the next event of a reply is a notice of it. True if that was so."""
        reason = self._pressure() if self.has_draft else ""
        if reason:
            self._release_draft(reason)
        return bool(reason)

    def _release_draft(self, reason: str) -> None:
        draft, self._draft, self._draft_context = self._draft, None, None
        self._drafters.pop("draft", None)
        if draft is not None:
            draft.close()
        self._notices.append(reason)

    def _give_up_draft(self, failure: str) -> None:
        """It would fail in every reply to come: released, and said once."""
        self.draft_failure = failure
        self._release_draft(f"{failure.rstrip('.')}; it was released, and `/speculation draft` loads it again")

    def _due_notices(self) -> Iterator[Notice]:
        while self._notices:
            yield Notice(self._notices.pop(0))

    def answer_now(self) -> None:
        """End the running reply's reasoning at the next round, or as soon as it begins. From any thread."""
        self._answer_now = True

    def close(self) -> None:
        """Give all memory back. Safe to repeat."""
        if self._draft is not None:
            self._draft.close()
        self._target.close()

    def count_tokens(self, text: str) -> int:
        """Tokens of `text` on its own."""
        return len(self._target.tokenize(text))

    def prompt_tokens(self, messages: Sequence[Message], options: ReplyOptions) -> list[int]:
        """What `reply` would have the target read."""
        return self._fitted(messages, options)[0].tokens

    def margin(self, messages: Sequence[Message], options: ReplyOptions, tokens: Sequence[int]) -> float:
        """How close the target's choice is after `tokens` of a reply to `messages`: the two likeliest logits' distance.

        Cheap after such a reply, which the cache holds. Raises as `reply` does, and Cancelled.
        """
        before = [*self.prompt_tokens(messages, options), *tokens]
        for _ in self._read(before):
            pass
        return margin(self._context.decode(before[-1:], 1)[0])

    def reply(self, messages: Sequence[Message], options: ReplyOptions) -> Generator[Event, None, None]:
        """Stream the reply to `messages`; the last event is `Finished`.

        Raises PromptTooLong and TemplateError before the caches are touched, and ModelError; after any of them, and
        after closing the generator, the engine is ready for the next reply.
        """
        started = time.perf_counter()
        self._answer_now = False
        self.relieve()
        yield from self._due_notices()
        rendered, left_out = self._fitted(messages, options)
        prompt = rendered.tokens
        if len(prompt) > self._context.n_ctx:
            what = "the reply with its message" if options.continue_last else "this message alone"
            raise PromptTooLong(what, len(prompt), self._context.n_ctx)
        yield from self._say_left_out(left_out)
        if options.max_tokens is not None and options.max_tokens <= 0:
            yield Finished("length", Figures())
            return
        try:
            reused = yield from self._read(prompt)
        except Cancelled:
            yield Finished("cancelled", Figures())
            return
        seconds = time.perf_counter() - started
        stats = Stats(Prompt(len(prompt), reused, seconds, self._context.n_ctx))
        stop = (*options.stop, *self.template.stop)
        text = ReplyText(stop, in_reasoning=rendered.in_reasoning, in_answer=rendered.in_answer)
        try:
            yield from self._write(prompt, options, stats, text)
        finally:
            self._after_reply()

    # ---- what the prompt is

    def _fitted(self, messages: Sequence[Message], options: ReplyOptions) -> tuple[Rendered, tuple[trimming.Turn, ...]]:
        """The prompt, and the turns that are left out of it. Too long if not even the last turn fits."""
        system, turns = trimming.split(messages)
        room = trimming.room(self._context.n_ctx, options.max_tokens)
        for cut in trimming.cuts(self._turn_sizes(turns), room):
            rendered = self._render([*system, *chain.from_iterable(turns[cut:])], options)
            if len(rendered.tokens) <= room:
                break
        return rendered, tuple(turns[:cut])

    def _turn_sizes(self, turns: Sequence[trimming.Turn]) -> list[int]:
        """Tokens of what was written in each turn, counted once."""
        texts = {message.content for turn in turns for message in turn}
        self._sizes = {text: self._sizes.get(text) or self.count_tokens(text) for text in texts}
        return [sum(self._sizes[message.content] for message in turn) for turn in turns]

    def _say_left_out(self, turns: tuple[trimming.Turn, ...]) -> Iterator[Notice]:
        """Once for each cut."""
        if turns and turns != self._left_out:
            n, room = len(turns), f"in {self._context.n_ctx:,} tokens"
            if n == 1:
                yield Notice(f"the oldest turn no longer fits {room} and is left out")
            else:
                yield Notice(f"the {n} oldest turns no longer fit {room} and are left out")
        self._left_out = turns

    def _render(self, messages: Sequence[Message], options: ReplyOptions) -> Rendered:
        variables = dict(options.template_variables)
        return self.template.render(messages, variables, continue_last=options.continue_last)

    # ---- reading the prompt

    def _read(self, prompt: Sequence[int]) -> Generator[Reading, None, int]:
        """Bring the caches to the prompt without its last token; returns how many tokens the target's already had."""
        reused = self._reuse(prompt[:-1])
        total = len(prompt) - 1 - reused
        if total:
            yield Reading(0, total, reused)
        while (start := len(self._context.tokens)) < len(prompt) - 1:
            stop = min(start + self._context.n_batch, len(prompt) - 1)
            self._context.decode(prompt[start:stop], 0)
            yield Reading(stop - reused, total, reused)
            self.relieve()
        return reused

    def _reuse(self, wanted: Sequence[int]) -> int:
        """Roll back to what the target's cache shares with `wanted`, or to nothing where the model cannot."""
        prefix = common_prefix(self._context.tokens, wanted)
        try:
            self._context.rollback(prefix)
        except RollbackError:
            self._context.rollback(0)
            return 0
        return prefix

    def _prepare_drafters(self, prompt: Sequence[int]) -> None:
        """Have the n-gram look-up know the prompt, and the draft forget what is not in it."""
        for drafter in self._drafters.values():
            if isinstance(drafter, ModelDrafter) and self._draft_context is not None:
                drafter.rollback(common_prefix(self._draft_context.tokens, prompt[:-1]))
                continue
            for _ in drafter.read(prompt):
                pass

    def _reading_along(self, kept: Sequence[int], lag: int = 0) -> ReadingAlong | None:
        """For a draft that will be used and has more than `lag` tokens of the conversation to read."""
        drafter, context = self._drafters.get("draft"), self._draft_context
        if not isinstance(drafter, ModelDrafter) or context is None or len(kept) > context.n_ctx:
            return None
        unread = len(kept) - len(context.tokens)
        wanted = unread > lag + 1 and self._policy.wants(drafter.name, unread)
        return ReadingAlong(drafter, kept) if wanted else None

    # ---- writing the reply

    def _write(
        self, prompt: Sequence[int], options: ReplyOptions, stats: Stats, text: ReplyText
    ) -> Generator[Event, None, None]:
        self._prepare_drafters(prompt)
        room = self._context.n_ctx + 1 - len(prompt)  # a full context's last token has no cell
        limit = room if options.max_tokens is None else min(room, options.max_tokens)
        self._policy.begin(options.sampling.temperature, self._context.rollback_limit, limit)
        asked, along = self._policy.speculation, self._reading_along(prompt)
        decoder = Decoder(
            self._context,
            {name: drafter for name, drafter in self._drafters.items() if not along or drafter is not along.drafter},
            self._policy,
            is_eog=self._target.is_eog,
            max_depth=self._context.rollback_limit,
        )
        figures = Figures()
        reason = "cancelled"
        pieces: list[Piece] = []
        with suppress(Cancelled):
            if along and options.draft_first:
                along.finish(decoder)
            for event in decoder.run(prompt, options.sampling, options.max_tokens):
                if along and along.is_due:  # asking the policy what it wants has a price, and this is every round
                    event = along.charged(event, self._policy.wants("draft"))
                before = text.n_tokens
                pieces += text.feed(self._bytes(event))
                reason = event.finish or reason
                if text.stopped:
                    event, reason = _trimmed(event, text.n_tokens - before), "stop"
                figures = stats.add(event, self._policy.plain_seconds)
                yield Generated(tuple(pieces), event, figures)
                pieces = []
                if text.stopped:
                    break
                if self._answer_now and text.thinking and not event.finish:
                    pieces = self._end_reasoning(decoder, text, event.context_used)
                if failure := decoder.lost.pop("draft", ""):
                    self._give_up_draft(failure)
                    along = None
                if self.relieve():
                    decoder.give_up("draft")
                    along = None
                if asked != self._policy.speculation:
                    asked = self._policy.speculation
                    along = self._catching_up(decoder, along, event)
                if along and along.reading and not event.finish:
                    # A fixed depth promises the same text for the same seed: not by how fast this machine is just now.
                    along = self._read_on(decoder, along, event, 0.0 if asked.depth else event.target_seconds)
                yield from self._due_notices()
        if text.stopped:
            self._forget_after(len(prompt) + text.n_tokens)
        yield Finished(reason, figures, (*pieces, *text.finish()))

    def _read_on(self, decoder: Decoder, along: ReadingAlong, event: Round, seconds: float) -> ReadingAlong | None:
        """Have a draft read on after a round; where it is not wanted any more, it is idle like any other."""
        if event.drafter == NgramDrafter.name:
            return along  # while copying pays it waits: that may be so to the end
        if self._policy.wants(along.drafter.name, event.context_used - along.drafter.n_cached):
            along.go_on(decoder, seconds)
            return along
        decoder.admit(along.drafter)
        return None

    def _catching_up(self, decoder: Decoder, along: ReadingAlong | None, event: Round) -> ReadingAlong | None:
        """How the draft comes back to a reply in which it was switched on: by reading along what it missed."""
        if along and along.reading:
            return along
        along = self._reading_along([*self._context.tokens, event.tokens[-1]], ModelDrafter.BATCH)
        if along:
            decoder.give_up("draft")
        return along

    def _end_reasoning(self, decoder: Decoder, text: ReplyText, context_used: int) -> list[Piece]:
        """Have the target find its reasoning ended; answers with the text that was held back for want of its end."""
        closing = self.template.closing
        if context_used + len(closing) >= self._context.n_ctx:
            return []
        self._answer_now = False
        decoder.insert(closing)
        return text.feed((self._target.piece(token), Origin.PLAIN) for token in closing)

    def _bytes(self, event: Round) -> Iterator[tuple[bytes, Origin]]:
        """The text of a round's tokens; an end token has none."""
        shown = event.tokens[:-1] if event.finish == "end" else event.tokens
        return ((self._target.piece(token), origin) for token, origin in zip(shown, event.origins, strict=False))

    def _forget_after(self, n_tokens: int) -> None:
        """Take out of the caches what a stop string cut off. Where the model cannot, all is read anew next time."""
        with suppress(RollbackError):
            self._context.rollback(n_tokens)
        for drafter in self._drafters.values():
            drafter.rollback(n_tokens)


def _trimmed(event: Round, n_tokens: int) -> Round:
    """The last round of a reply that a stop string ended. A string that began in an earlier round leaves no tokens."""
    n = max(0, n_tokens)
    used = event.context_used - len(event.tokens) + n_tokens
    return replace(event, tokens=event.tokens[:n], origins=event.origins[:n], context_used=used, finish="")
