"""Ids of conversations: the second of their beginning, as text that sorts and can be read aloud.

Seconds since 2024 in Crockford's base 32 (no i, l, o, u; https://www.crockford.com/base32.html): six characters until
2058, seven after that. A second that is taken gives the next free one.
"""

from __future__ import annotations

from typing import Final

EPOCH: Final = 1_704_067_200  # 2024-01-01 00:00 UTC
ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
# What people type for what they read.
_READINGS: Final = str.maketrans("oil", "011")


def encode(seconds: int) -> str:
    """The id of a moment, given in seconds since the Unix epoch (0 for all before 2024)."""
    number, text = max(0, seconds - EPOCH), ""
    while number or len(text) < 6:
        number, digit = divmod(number, 32)
        text = ALPHABET[digit] + text
    return text


def normalised(typed: str) -> str:
    """The beginning of an id as a person typed it, in the form ids are kept in."""
    return typed.strip().lower().translate(_READINGS)
