"""Ways in which a file can come back other than it was written."""

from __future__ import annotations

import random
from collections.abc import Callable

Damage = Callable[[bytes, random.Random], bytes]


def bit_flip(content: bytes, rng: random.Random) -> bytes:
    """One bit is the other one."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def truncation(content: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return content[: rng.randrange(len(content))]


def insertion(content: bytes, rng: random.Random) -> bytes:
    """Bytes that nobody wrote lie in between."""
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.randrange(1, 9)) + content[place:]


def nonsense(content: bytes, rng: random.Random) -> bytes:
    """A block is random, as from another file."""
    place = rng.randrange(len(content))
    size = min(rng.randrange(1, 513), len(content) - place)
    return content[:place] + rng.randbytes(size) + content[place + size :]


def zeros(content: bytes, rng: random.Random) -> bytes:
    """A block was never written, as after a power cut."""
    place = rng.randrange(len(content))
    size = min(rng.randrange(1, 4097), len(content) - place)
    return content[:place] + bytes(size) + content[place + size :]


def digit(content: bytes, rng: random.Random) -> bytes:
    """One digit of a text is another: what is read still makes sense."""
    places = [i for i, byte in enumerate(content) if 48 <= byte <= 57]
    if not places:
        return bit_flip(content, rng)
    place = rng.choice(places)
    other = rng.choice([d for d in b"0123456789" if d != content[place]])
    return content[:place] + bytes([other]) + content[place + 1 :]


def emptied(content: bytes, rng: random.Random) -> bytes:
    """Nothing is left."""
    return b""


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (bit_flip, truncation, insertion, nonsense, zeros, digit, emptied)
}
REPLACED = "replaced"  # by the file of another that is whole: needs that other
REMOVED = "removed"
HOWS = (*DAMAGES, REPLACED, REMOVED)
