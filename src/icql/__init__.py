"""In-Context Compositional Q-Learning: offline RL with local Q-functions from retrieved context."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icql._version import __version__ as __version__

if TYPE_CHECKING:
    from icql.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Public names are those of `icql.api`, imported on first use: `--help` need not wait."""
    if not name.startswith("_") and name in (api := import_module("icql.api")).__all__:
        return getattr(api, name)
    raise AttributeError(f"module 'icql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *import_module("icql.api").__all__]
