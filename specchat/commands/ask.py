"""`specchat ask "question"`: one reply on standard output, and nothing else there.

Contract: standard input, if it is not a terminal, comes before the question, files (`-f`) before both. Notices,
statistics and, on a terminal only, progress go to standard error. So does the reasoning of a model that thinks, on a
terminal only; `--json` has it in any case. Whatever ends the reply early leaves what came of it on standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from specchat.commands.options import Options, shared_options
from specchat.errors import SpecchatError

if TYPE_CHECKING:
    from specchat.commands.printer import Printer
    from specchat.history import Conversation, Store
    from specchat.session import Launch, Session, SessionEvent
    from specchat.worker.protocol import EngineInfo

_NOTHING: Final = 'Ask something: specchat ask "question", or pipe a text in.'


@click.command("ask")
@click.argument("question", nargs=-1, metavar="[QUESTION]...")
@click.option(
    "-C",
    "--continue",
    "latest",
    is_flag=True,
    help="Go on with the conversation used last: it is read before QUESTION, and both turns are added to it.",
)
@shared_options
@click.option("--stats", is_flag=True, help="Print the reply's figures on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the reply, its figures, the models.")
def command(question: tuple[str, ...], latest: bool, stats: bool, as_json: bool, **given: Any) -> None:
    """Print the reply to QUESTION, and nothing else, on standard output.

    Text piped in comes before the question, files before both. A thinking model's reasoning is shown on standard
    error, and only if that is a terminal; --json includes it.
    """
    options = Options(**given)
    text = "\n\n".join(filter(str.strip, (_piped(), " ".join(question).strip())))
    if not text and not options.files:
        raise click.UsageError(_NOTHING)
    with ExitStack() as open_files:
        last = _last(open_files) if latest else None
        launch = _launch(options, last, quiet=as_json)
        if not text and not any(attached.text.strip() for attached in launch.attachments):
            raise click.UsageError(_NOTHING)
        _answer(launch, text, stats, as_json, partial(_turn, last, options.system))


def _last(open_files: ExitStack) -> tuple[Store, Conversation]:
    """The conversation used last, with the store it is in."""
    from specchat import locations
    from specchat.commands import resuming
    from specchat.history import Store

    store = open_files.enter_context(Store(locations.history_file()))
    return store, resuming.conversation(store, "last")


def _launch(options: Options, last: tuple[Store, Conversation] | None, quiet: bool) -> Launch:
    """What to open: what was named, else what the conversation was held with."""
    from specchat.commands import opening, resuming

    name = resuming.pair_of(last[1]) if last is not None and not options.models() else None
    launch = opening.launch(options, name)
    if not quiet and sys.stderr.isatty():  # scripts ask again and again, and look for nothing
        launch = _offering_once(launch)
    return _without_idle_draft(launch)


def _offering_once(launch: Launch) -> Launch:
    """The same, which tells what could be its draft the first time that this is found."""
    from specchat import state
    from specchat.commands import opening

    offering = opening.offering(launch)
    is_new = offering is launch or state.offer_once(f"{launch.target}: {offering.remark}")
    return offering if is_new else launch


def _turn(
    last: tuple[Store, Conversation] | None, system: str | None, session: Session, text: str, printer: Printer
) -> Generator[SessionEvent, None, None]:
    """The reply to `text`, on its own or in a conversation."""
    if last is None:
        return session.send(text)
    from specchat.commands import resuming

    store, conversation = last
    if store.set_aside is not None:
        printer.say(store.set_aside.sentence)
    return resuming.go_on(store, conversation, session, text, system, printer.say)


_Turn: TypeAlias = "Callable[[Session, str, Printer], Generator[SessionEvent, None, None]]"


def _answer(launch: Launch, text: str, stats: bool, as_json: bool, turn: _Turn) -> None:
    from specchat.commands import report
    from specchat.commands.printer import Printer
    from specchat.session import Reply, Session

    printer, reply, info, error = Printer(silent=as_json), Reply(), None, ""
    with closing(Session(launch)) as session:
        try:
            for progress in session.load():
                printer.show(progress)
            info = session.info
            for sentence in (_without_draft(launch, info), *info.notices) if info else ():
                printer.say(sentence)
            with closing(turn(session, text, printer)) as events:
                for event in events:
                    reply.add(event)
                    printer.show(event)
        except SpecchatError as raised:
            error = str(raised)
            raise
        finally:
            printer.end()
            if reply.finish == "context":
                printer.say(f"the context of {reply.figures.context_size:,} tokens is full: the reply is cut short")
            if as_json and reply.figures.passes:
                click.echo(report.document(launch, info, reply, error))
            if stats and reply.figures.passes:
                click.echo("\n".join(report.lines(reply.figures)), err=True)


def _without_draft(launch: Launch, info: EngineInfo) -> str:
    """Why no draft model proposes where one was asked for; "" where none is missing."""
    from specchat.engine.policy import Mode

    if info.draft is None and launch.draft is None and launch.settings.speculation.mode is Mode.DRAFT:
        return f"{launch.name} has no draft model: the reply is plain"
    return info.draft_obstacle


def _piped() -> str:
    """The text on standard input; none if that is a terminal."""
    from specchat import texts

    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return texts.decode(sys.stdin.buffer.read(), "standard input").strip("\n")


def _without_idle_draft(launch: Launch) -> Launch:
    """A draft that a single reply will not use need not be loaded; one that the user named is checked all the same."""
    from specchat.engine.policy import Mode

    used = launch.settings.speculation.mode in (Mode.AUTO, Mode.DRAFT)
    return launch if used or launch.draft_required else replace(launch, draft=None)
