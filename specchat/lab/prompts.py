"""What measurements are made on: a fixed set of prompts, or the user's own.

Contract: the fixed sets never change within a version, so that figures can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specchat import locations
from specchat.errors import SpecchatError

SEPARATOR: Final = "---"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One first message, and what to call it in a table."""

    name: str
    text: str


_FUNCTION: Final = """\
def read_scores(path):
    scores = {}
    with open(path) as f:
        for line in f:
            parts = line.strip().split(",")
            if len(parts) != 2:
                continue
            name = parts[0].strip()
            score = int(parts[1])
            if name in scores:
                scores[name] = scores[name] + score
            else:
                scores[name] = score
    return scores


def print_scores(scores):
    for name in sorted(scores):
        print(name + ": " + str(scores[name]))
"""
_FAULTY: Final = (
    "The old lighthouse stand at the end of the peninsula, and every evening it's lamp sweep across the bay. "
    "Fisherman from the village says that no ship have been lost since it was build in 1874, allthough the rocks "
    "below it is among the most dangerous of the whole coast. Last winter a storm has broken two of the windows, "
    "and the keeper, who lives there since thirty years, repair them by himself."
)
_ARTICLE: Final = (
    "Honeybees tell each other where food is with a dance. A forager that has found a rich patch of flowers returns "
    "to the hive and runs along a straight line on the comb, waggling its body, then circles back and repeats the "
    "run. The angle between the run and the vertical is the angle between the flowers and the sun; the longer the "
    "waggling lasts, the farther the flight. Other bees follow the dancer closely, feel its movements in the dark, "
    "and leave in the right direction. The dance was decoded in the 1940s by comparing where marked bees danced with "
    "where they had fed. Later experiments with a small mechanical bee confirmed it: real bees flew to where the "
    "machine had told them to. Even so, the dance is only a rough guide, and the scent of the flowers that clings to "
    "the dancer helps the others to find the exact place."
)
_NOTICE: Final = (
    "The library will be closed on Monday, 3 June, for the annual stocktaking. Books that are due on that day may be "
    "returned on Tuesday without a fee. The reading room on the second floor stays open from 9 to 17 o'clock; please "
    "use the entrance in Mill Lane, as the main door will be locked. Reserved books can be collected at the desk of "
    "the reading room."
)
_COUNT: Final = (
    "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, "
    "seventeen, eighteen, nineteen, twenty, twenty-one, twenty-two, twenty-three, twenty-four, twenty-five, "
    "twenty-six, twenty-seven, twenty-eight, twenty-nine, thirty, thirty-one, thirty-two, thirty-three, thirty-four, "
    "thirty-five, thirty-six, thirty-seven, thirty-eight, thirty-nine, forty, forty-one, forty-two, forty-three, "
    "forty-four, forty-five, forty-six, forty-seven, forty-eight, forty-nine, fifty, fifty-one, fifty-two, "
    "fifty-three, fifty-four, fifty-five, fifty-six, fifty-seven, fifty-eight, fifty-nine, sixty"
)

# Free text, where little can be copied, and tasks that repeat much of the prompt or of the reply itself.
BENCH: Final = (
    Prompt("chat", "What should I think about before I adopt a dog from a shelter?"),
    Prompt("code", "Write a Python class for a queue with a maximum size, with type hints, docstrings and an example."),
    Prompt(
        "rewrite",
        f"Rewrite this file so that it uses collections.Counter. Print the whole file.\n\n```python\n{_FUNCTION}```",
    ),
    Prompt("correct", f"Correct the mistakes in this text and print the corrected text:\n\n{_FAULTY}"),
    Prompt("story", "Write a short story about a clockmaker who is afraid of being late."),
    Prompt("summary", f"Summarise this text in three sentences:\n\n{_ARTICLE}"),
    Prompt("numbers", f"Write the numbers from one to sixty as English words, like this: {_COUNT}."),
    Prompt("repeat", f"Repeat the following text word for word:\n\n{_NOTICE}"),
)

# What `verify` compares texts on: many short beginnings of different kinds.
VERIFY: Final = (
    *BENCH,
    Prompt("letter", "Write a friendly letter to a neighbour whose music is too loud at night."),
    Prompt("recipe", "Give me a recipe for a vegetable soup, with a list of ingredients."),
    Prompt("explain", "Explain to a ten-year-old why the sky is blue."),
    Prompt("list", "List ten cities in Europe with their countries, one per line."),
    Prompt("sql", "Write an SQL query that finds the three customers with the most orders in the last month."),
    Prompt("translate", "Translate into French: The train to the coast leaves at half past seven tomorrow morning."),
    Prompt("poem", "Write a poem of four lines about the first snow."),
    Prompt("json", "Describe a book as a JSON object with the fields title, author, year and tags."),
    Prompt("maths", "A shop sells pens at 3 for 2 dollars. How much do 12 pens cost? Show every step."),
    Prompt("history", "Who built the first railways, and why?"),
    Prompt("advice", "I cannot fall asleep before an exam. What can I do?"),
    Prompt("table", "Make a table in Markdown of the planets with their number of moons."),
)


# What a policy gets to know a pair with, before anything is measured: in none of the sets.
WARM_UP: Final = Prompt("warm-up", "What can I do with two children on a rainy weekend?")


def from_file(path: Path) -> tuple[Prompt, ...]:
    """The prompts in a text file, separated by lines that hold only `---`.

    Raises SpecchatError for a file that cannot be read or has none.
    """
    try:
        lines = locations.expanded(path).read_text("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise SpecchatError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise SpecchatError(f"cannot read {path}: {reason}") from error
    texts: list[list[str]] = [[]]
    for line in lines:
        if line.strip() == SEPARATOR:
            texts.append([])
        else:
            texts[-1].append(line)
    found = [text for text in ("\n".join(text).strip() for text in texts) if text]
    if not found:
        raise SpecchatError(f"{path} holds no prompt: write them one after the other, with lines of --- between them")
    return tuple(Prompt(f"{i} {_beginning(text)}", text) for i, text in enumerate(found, 1))


def _beginning(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 16 else words[:15] + "…"
