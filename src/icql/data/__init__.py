"""Where transitions come from: formats, episodes → transitions, validation, the task table."""

from icql.data.datasets import load_dataset
from icql.data.tasks import Task, get_task, list_tasks, register_task
from icql.data.transitions import DataInfo, Steps, Transitions

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
