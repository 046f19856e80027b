"""JSON documents that carry a digest of themselves: one that was changed is never believed.

A digest guards against damage and mix-ups; who changes a file on purpose can write a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from icql.errors import UserError
from icql.files import read_json, write_json

DIGEST = "digest"  # under this name in the document


def plain(content: Any) -> Any:
    """Return content as JSON gives it back."""
    return json.loads(json.dumps(content, allow_nan=False))


def digest(content: Any) -> str:
    """SHA-256 of content as JSON, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return content, as JSON gives it back, with a digest of itself in place of an older one."""
    simple = {name: value for name, value in plain(dict(content)).items() if name != DIGEST}
    return simple | {DIGEST: digest(simple)}


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write content with a digest of itself, whole or not at all."""
    write_json(path, sealed(content))


def agrees(content: Mapping[str, Any]) -> bool:
    """Whether a document is what was written."""
    rest = {name: value for name, value in content.items() if name != DIGEST}
    try:
        return bool(content.get(DIGEST) == digest(rest))
    except ValueError:  # NaN, which is never written
        return False


def read_sealed(path: Path, *, needed: bool = True, fix: str = "") -> dict[str, Any]:
    """Return what was written, less its digest; documents made before had none: not `needed`.

    Raises:
        UserError: there is no such file, or it is not what was written.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError("is not a JSON object.", where=str(path), fix=fix)
    if (needed or DIGEST in content) and not agrees(content):
        raise UserError(
            "was changed or is damaged: it does not match its digest.", where=str(path), fix=fix
        )
    content.pop(DIGEST, None)
    return content
