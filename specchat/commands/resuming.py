"""Conversations that are gone on with: found by what was typed, with the pair they were held with."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

from specchat.errors import SpecchatError
from specchat.history import Conversation, Store
from specchat.pairs import catalog
from specchat.session import Session, SessionEvent, compose
from specchat.tui.journal import Journal, spoken
from specchat.tui.reply import Reply


def conversation(store: Store, wanted: str) -> Conversation:
    """The one whose id begins with `wanted`, or the one used last for "last".

    Raises SpecchatError, which says so where a damaged file is why there is none.
    """
    try:
        found = store.last() if wanted == "last" else store.find(wanted)
        if found is None:
            raise SpecchatError("there is no conversation to go on with yet")
    except SpecchatError as error:
        if store.set_aside is None:
            raise
        raise SpecchatError(f"{store.set_aside.sentence}; {error}") from error
    return found


def pair_of(conversation: Conversation) -> str | None:
    """The pair a conversation was held with, if it is one that can be opened by its name."""
    return conversation.pair if conversation.pair in catalog.load().pairs else None


def go_on(
    store: Store, found: Conversation, session: Session, text: str, system: str | None, say: Callable[[str], None]
) -> Generator[SessionEvent, None, None]:
    """Stream the reply to `text` as the next turn of a conversation, written down as it comes.

    `system` is another system prompt than the conversation's. Where a window has gone on with the conversation, or is
    doing so now, the turn begins a branch of its own; that is said. Raises SpecchatError.
    """
    journal, reply = Journal(store, session, say), Reply()
    journal.open(found)
    if system is not None:
        session.system_prompt = system
    whole, session.attachments = compose(session.attachments, text), ()
    message, forked = journal.ask(whole, store.conversation(found.id).unsent, text)
    if message is not None:
        session.messages = spoken(store.path(message.parent))
    if forked:
        say("another window goes on with this conversation: this is a branch of its own")
    try:
        with closing(session.send(whole)) as events:
            for event in events:
                reply.add(event)
                journal.grow(reply)
                yield event
    except SpecchatError:
        reply.finish = "error"
        raise
    finally:
        journal.end(reply)
