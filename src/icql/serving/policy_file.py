"""A policy file, verified and ready to be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.evidence.stillness import runs
from icql.export.card import FORMAT
from icql.export.seal import CARD, verify
from icql.files import read_small

BLOCK = 32  # states at once: more would not stay in a processor's cache
NEEDED = "onnxruntime, starlette and uvicorn are needed to serve a policy."
LARGEST = 2**31  # bytes: a message of ONNX cannot be larger
INSTALL = "pip install 'icql[serve]'"

Answer = dict[str, Any]


class PolicyFile:
    """What `icql export` wrote, loaded: its card, and answers to states.

    Raises:
        UserError: there is no such file, it is no policy file, or it is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise UserError(NEEDED, where="icql serve", fix=INSTALL) from error
        try:
            content = read_small(path, LARGEST)
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror}).", where=str(path)) from None
        self.digest = verify(content, str(path))
        options = onnxruntime.SessionOptions()
        # one core answers; waiting threads of a pool would take the other from whoever asks
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
        )
        self.card = json.loads(self._session.get_modelmeta().custom_metadata_map[CARD])
        if self.card["format"] != FORMAT:
            raise UserError(
                f"was written in format {self.card['format']}, this version reads {FORMAT}.",
                where=str(path),
            )
        self.columns: int = self.card["columns"]
        self.names: list[str] = self.card["signals"]["observation"]
        still = (self.card["alarm"] or {}).get("still")  # files of before have none
        self._still = None if still is None else _limits(still["states"])
        self._outputs = [o.name for o in self._session.get_outputs() if o.name != "limit"]

    def __call__(self, states: NDArray[np.float32]) -> Answer:
        """Actions, distances and alarms of states (rows, columns), as JSON has them."""
        parts = [
            self._session.run(self._outputs, {"state": states[i : i + BLOCK]})
            for i in range(0, len(states), BLOCK)
        ]
        whole = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        said = dict(zip(self._outputs, whole, strict=True))
        answer: Answer = {"actions": said["action"].tolist()}
        if "alarm" in said:
            answer["distances"] = said["distance"].tolist()
            answer["alarms"] = said["alarm"].tolist()
            answer["limit"] = self.card["alarm"]["limit"]
        return answer

    def stuck(self, states: NDArray[np.float32]) -> list[list[str | int]] | None:
        """The columns that have stood still for too long at each of an episode's last states.

        By name, or by number where they have none; None: the file cannot tell.
        """
        if self._still is None:
            return None
        called = runs(states) > self._still
        names: list[str | int] = [*self.names] or list(range(self.columns))
        return [[names[i] for i in np.flatnonzero(row)] for row in called]


def _limits(states: list[int | None]) -> NDArray[np.float64]:
    """For how many states each column may stand still."""
    return np.array([np.inf if n is None else n for n in states])
