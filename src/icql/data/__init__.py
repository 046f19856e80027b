"""Where transitions come from: sources, episodes → transitions, the task table."""

from icql.data.sources import load_dataset
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
