"""Conversations as text for other programs: pure functions over the history's values.

Markdown holds one branch, as it reads; JSON holds every message of every branch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from specchat.history.rows import finite
from specchat.history.values import Conversation, Message

FORMAT: Final = "specchat-conversation"
FORMAT_VERSION: Final = 1
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_SPEAKERS: Final = {"user": "You", "assistant": "Assistant"}


def to_markdown(conversation: Conversation, path: Sequence[Message], *, reasoning: bool = False) -> str:
    """One branch as a Markdown document; reasoning, if wanted, in a block that folds."""
    facts = [f"- Conversation: `{conversation.id}`", f"- Begun: {conversation.created:%Y-%m-%d %H:%M} UTC"]
    if conversation.pair:
        facts.append(f"- Model: {_escaped(conversation.pair)}")
    parts = [f"# {_escaped(conversation.title)}", "\n".join(facts)]
    if conversation.system_prompt:
        parts += ["## System prompt", _closed(conversation.system_prompt)]
    for message in path:
        parts += _turn(message, reasoning)
    return "\n\n".join(parts) + "\n"


def to_json(conversation: Conversation, tree: Sequence[Message], path: Sequence[Message]) -> str:
    """Everything kept of a conversation: `tree` all its messages, `path` those of the branch shown."""
    value = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "id": conversation.id,
        "title": conversation.title,
        "title_origin": conversation.title_origin,
        "created": _instant(conversation.created),
        "updated": _instant(conversation.updated),
        "pair": conversation.pair,
        "system_prompt": conversation.system_prompt,
        "settings": conversation.settings,
        "branch_shown": [message.id for message in path],
        "messages": [_message(message) for message in tree],
    }
    return json.dumps(finite(value), ensure_ascii=False, indent=2) + "\n"


def _message(message: Message) -> dict[str, object]:
    return {
        "id": message.id,
        "parent": message.parent,
        "role": message.role,
        "state": message.state,
        "content": message.content,
        "reasoning": message.reasoning,
        "pair": message.pair,
        "settings": message.settings,
        "figures": message.figures,
        "created": _instant(message.created),
        "updated": _instant(message.updated),
    }


def _turn(message: Message, reasoning: bool) -> list[str]:
    parts = [f"## {_SPEAKERS[message.role]}"]
    if reasoning and message.reasoning.strip():
        summary = "<details>\n<summary>Reasoning</summary>"
        parts += [summary, _closed(message.reasoning), "</details>"]
    if message.content.strip():
        parts.append(_closed(message.content))
    if message.state != "complete":
        parts.append({"streaming": "*(unfinished)*", "stopped": "*(stopped)*", "failed": "*(failed)*"}[message.state])
    return parts


def _closed(text: str) -> str:
    """The text, with the code block closed that a stopped reply left open: it would swallow what follows."""
    text = text.strip("\n")
    fence = ""
    for line in text.splitlines():
        match = _FENCE.fullmatch(line)
        if match and not fence:
            # A backtick after the fence makes it inline code, not a block.
            fence = "" if match[1][0] == "`" and "`" in match[2] else match[1]
        elif match and match[1].startswith(fence) and not match[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>#~|])", r"\\\1", text)


def _instant(when: datetime) -> str:
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
