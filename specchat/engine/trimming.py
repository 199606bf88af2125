"""Which turns of a conversation are read when not all of them fit into the context.

Contract: arithmetic on sizes; a turn is a user's message with what was replied to it. System messages at the
beginning belong to no turn and always stay, and so does the last turn.

The rule: tokens of content are counted from the first turn on, and the prompt begins with a turn in which a multiple of
half the room falls: the first of these from which the rest fits, or else the last turn of all. A cut therefore stays
where it is, and with it what the cache holds, until about half the room has been written anew. It depends on nothing
but the conversation and the room: an engine that was started again, or comes back from another conversation, cuts at
the same place. A turn that takes half the room or more always may be the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from specchat.engine.replies import Message

Turn: TypeAlias = "tuple[Message, ...]"
LONGEST_RESERVE: Final = 2048  # tokens kept free for a reply: few are longer


def room(n_ctx: int, max_tokens: int | None) -> int:
    """Tokens that a prompt of several turns may have, so that a reply still fits behind it."""
    reserve = min(n_ctx // 4, LONGEST_RESERVE)
    return n_ctx - (reserve if max_tokens is None else min(reserve, max_tokens))


def split(messages: Sequence[Message]) -> tuple[Turn, list[Turn]]:
    """The system messages at the beginning, and the turns after them."""
    start = next((i for i, message in enumerate(messages) if message.role != "system"), len(messages))
    begins = [start, *(i for i in range(start + 1, len(messages)) if messages[i].role == "user"), len(messages)]
    turns = [tuple(messages[a:b]) for a, b in pairwise(begins) if a < b]
    return tuple(messages[:start]), turns


def cuts(sizes: Sequence[int], room: int) -> Iterator[int]:
    """How many of the oldest turns may be left out, the fewest first, where these sizes alone do not forbid it.

    `sizes` are the tokens of the turns' own texts; what a template adds decides which of the cuts really fits. The
    last answer leaves only the last turn, whatever its size.
    """
    block = max(1, room // 2)
    starts = [0, *accumulate(sizes)]
    last = max(0, len(sizes) - 1)
    for cut in range(last):
        multiple = -(-starts[cut] // block) * block  # the next from here on
        if (cut == 0 or multiple < starts[cut + 1]) and starts[-1] - starts[cut] <= room:
            yield cut
    yield last
