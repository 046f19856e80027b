"""The card and the digest inside a policy file; read and verified with the standard library alone.

The digest is the SHA-256 of the whole file, with 64 zeros in its own place: a changed weight, node
or word of the card is found before anything is run. It guards against damage and mix-ups; who
changes a file on purpose can write a new one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icql.errors import UserError

if TYPE_CHECKING:
    import onnx

CARD, DIGEST = "icql.card", "icql.digest"
ABSENT = "0" * 64
# an entry of ONNX's metadata as protobuf writes it: key, then field 2 with 64 bytes
_PLACE = re.compile(re.escape(DIGEST.encode()) + rb"\x12\x40([0-9a-f]{64})")


def seal(model: onnx.ModelProto, card: Mapping[str, Any]) -> bytes:
    """The bytes of a policy file: the model with its card and digest."""
    for name, value in ((CARD, json.dumps(card, allow_nan=False)), (DIGEST, ABSENT)):
        model.metadata_props.add(key=name, value=value)
    content: bytes = model.SerializeToString(deterministic=True)
    start = _place(content, "export").start(1)
    digest = hashlib.sha256(content).hexdigest().encode()
    return content[:start] + digest + content[start + len(ABSENT) :]


def verify(content: bytes, where: str) -> str:
    """The digest of a policy file, if it is that of its content.

    Raises:
        UserError: it is no policy file, or was changed after it was written.
    """
    place = _place(content, where)
    blank = content[: place.start(1)] + ABSENT.encode() + content[place.end(1) :]
    digest, found = place[1].decode(), hashlib.sha256(blank).hexdigest()
    if digest != found:
        raise UserError(
            f"was changed or damaged after it was written (its digest is {digest[:12]}…, its "
            f"content's {found[:12]}…).",
            where=where,
            fix="Export it again: icql export RUN FILE",
        )
    return digest


def _place(content: bytes, where: str) -> re.Match[bytes]:
    """Where the digest stands; a file has exactly one."""
    places = list(_PLACE.finditer(content))
    if len(places) != 1:
        raise UserError(
            "is no policy file of 'icql export', or is cut off.",
            where=where,
            fix="Make one with: icql export RUN policy.onnx",
        )
    return places[0]
