"""In-Context Compositional Q-Learning: offline RL with local Q-functions from retrieved context."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icql._version import __version__
from icql.errors import UserError

if TYPE_CHECKING:
    from icql.api import train
    from icql.data import Task, Transitions, get_task, load_dataset, register_task
    from icql.loading import load_critic, load_policy
    from icql.nn.in_context import literal_prompt_q, local_weights
    from icql.retrieval import retrieve

__all__ = [
    "Task",
    "Transitions",
    "UserError",
    "__version__",
    "get_task",
    "literal_prompt_q",
    "load_critic",
    "load_dataset",
    "load_policy",
    "local_weights",
    "register_task",
    "retrieve",
    "train",
]

# imported on first use: `icql --version` and `--help` need not wait for JAX
_HOMES = {
    "Task": "icql.data",
    "Transitions": "icql.data",
    "get_task": "icql.data",
    "literal_prompt_q": "icql.nn.in_context",
    "load_critic": "icql.loading",
    "load_dataset": "icql.data",
    "load_policy": "icql.loading",
    "local_weights": "icql.nn.in_context",
    "register_task": "icql.data",
    "retrieve": "icql.retrieval",
    "train": "icql.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'icql' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
