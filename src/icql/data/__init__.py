"""Where transitions come from: formats, episodes → transitions, validation, the task table."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from icql.data.tasks import Task, get_task, list_tasks, register_task
from icql.data.transitions import DataInfo, Steps, Transitions

if TYPE_CHECKING:
    from icql.data.datasets import load_dataset

__all__ = [
    "DataInfo",
    "Steps",
    "Task",
    "Transitions",
    "get_task",
    "list_tasks",
    "load_dataset",
    "register_task",
]


def __getattr__(name: str) -> Any:
    if name == "load_dataset":  # its readers (HDF5 and others) wait until a dataset is read
        return import_module("icql.data.datasets").load_dataset
    raise AttributeError(f"module 'icql.data' has no attribute {name!r}")
