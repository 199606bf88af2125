"""`specchat plan [PAIR|FILE.gguf]`: where the models would go, how long the context would be, and why.

Exit status 1 where not even the target fits; the sentence then says how much is missing and which pair would fit.
"""

from __future__ import annotations

from typing import Any

import click

from specchat.commands.options import Options, PairOrFile, shared_options
from specchat.errors import SpecchatError


@click.command("plan")
@click.argument("name", required=False, metavar="[PAIR | FILE.gguf]", type=PairOrFile())
@shared_options
def command(name: str | None, **given: Any) -> None:
    """Show where a pair's models and caches would go on this machine now, without loading them.

    What each part takes, what is free and what may be used, the context length, and a reason for every step down
    from everything on the best device. The options are those of the chat.
    """
    from specchat.commands import fitting, opening
    from specchat.worker import planner
    from specchat.worker.protocol import Load

    options = Options(**given)
    if text := opening.before_pulling(options, name):
        click.echo(text)
        return
    launch = opening.launch(options, name)
    request = Load(0, launch.target, launch.draft, launch.draft_required, launch.settings)
    planned = planner.explain(request)
    click.echo("\n".join(planned.lines))
    if planned.missing:
        raise SpecchatError(f"{planned.missing}; {fitting.suggestion(launch.settings.memory_limit)}")
