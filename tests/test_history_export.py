"""What an exported conversation looks like, to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from specchat.history import Store, to_json, to_markdown

MARKDOWN = """\
# Why \\<b\\> \\*so\\*?

- Conversation: `1wad95`
- Begun: 2026-01-02 03:04 UTC
- Model: small\\_pair

## System prompt

Be brief.

## You

Why <b> *so*?

## Assistant

Because:

```python
print("so")
```

*(stopped)*

## You

Go on.

## Assistant

*(failed)*
"""

REASONING = """\
## Assistant

<details>
<summary>Reasoning</summary>

Let me *see*.

</details>

Because:
"""

JSON = """\
{
  "format": "specchat-conversation",
  "version": 1,
  "id": "1wad95",
  "title": "Why <b> *so*?",
  "title_origin": "auto",
  "created": "2026-01-02T03:04:05.000Z",
  "updated": "2026-01-02T03:04:05.000Z",
  "pair": "small_pair",
  "system_prompt": "Be brief.",
  "settings": {
    "temperature": 0.5
  },
  "branch_shown": [
    1,
    2,
    3,
    4
  ],
  "messages": [
    {
      "id": 1,
      "parent": null,
      "role": "user",
      "state": "complete",
      "content": "Why <b> *so*?",
      "reasoning": "",
      "pair": "",
      "settings": {},
      "figures": {},
      "created": "2026-01-02T03:04:05.000Z",
      "updated": "2026-01-02T03:04:05.000Z"
    },
"""


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(None, clock=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp) as store:
        talk = store.create(pair="small_pair", system_prompt="Be brief.", settings={"temperature": 0.5})
        question = store.send(talk.id, "Why <b> *so*?", after=None).message
        reply = store.begin_reply(question.id, pair="small_pair")
        store.append_to(reply.id, 'Because:\n\n```python\nprint("so")\n', "Let me *see*.")
        store.finish(reply.id, "stopped", figures={"acceptance": 0.5, "speed": float("inf")})
        question = store.send(talk.id, "Go on.", after=reply.id).message
        reply = store.begin_reply(question.id)
        store.finish(reply.id, "failed")
        yield store


def test_markdown_shows_the_branch_and_closes_what_was_left_open(store: Store) -> None:
    (talk,) = store.conversations()
    assert to_markdown(talk, store.path(talk.leaf)) == MARKDOWN


def test_markdown_shows_the_reasoning_if_wanted(store: Store) -> None:
    (talk,) = store.conversations()
    assert REASONING in to_markdown(talk, store.path(talk.leaf), reasoning=True)


def test_markdown_of_an_empty_conversation_is_its_heading(store: Store) -> None:
    text = to_markdown(store.create(), ())
    assert text == "# Untitled\n\n- Conversation: `1wad96`\n- Begun: 2026-01-02 03:04 UTC\n"


def test_json_holds_every_branch(store: Store) -> None:
    (talk,) = store.conversations()
    path = store.path(talk.leaf)
    assert to_json(talk, store.tree(talk.id), path).startswith(JSON)
    store.edit(path[2].id, "Stop.")
    (talk,) = store.conversations()
    document = json.loads(to_json(talk, store.tree(talk.id), store.path(talk.leaf)))
    assert document["branch_shown"] == [1, 2, 5]
    assert [message["parent"] for message in document["messages"]] == [None, 1, 2, 3, 2]
    assert document["messages"][1]["figures"] == {"acceptance": 0.5, "speed": None}
    assert document["messages"][1]["reasoning"] == "Let me *see*."


@pytest.mark.parametrize(
    "reply",
    [
        "```\nopen",
        "````\n```\nstill open",
        "~~~ python\nopen\n```\n",
        "```\nclosed\n```\n```\nopen again",
        "```\nnot closed by\n``` this",
        "```inline``` is no block",
        "    ```\nindented is no block",
        "> ```\n> a quotation ends by itself",
    ],
)
def test_no_reply_swallows_the_turn_after_it(reply: str) -> None:
    with Store(None) as store:
        talk = store.create().id
        question = store.send(talk, "one", after=None).message
        answer = store.begin_reply(question.id)
        store.append_to(answer.id, reply)
        store.finish(answer.id, "stopped")
        store.send(talk, "two", after=answer.id)
        conversation = store.conversation(talk)
        text = to_markdown(conversation, store.path(conversation.leaf))
    tokens = MarkdownIt().parse(text)
    headings = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    assert headings == ["one", "You", "Assistant", "You"]
