"""Retrieval: which transitions of the dataset become the context Ω of a query state.

Metric × strategy × k; exact or approximate search; tables for s and s', cached by content.
"""

from icql.files import default_cache_dir
from icql.retrieval.report import SearchReport
from icql.retrieval.search import retrieve
from icql.retrieval.tables import Neighbours, append_neighbours, build_neighbours
from icql.settings.data import ContextSettings

__all__ = [
    "ContextSettings",
    "Neighbours",
    "SearchReport",
    "append_neighbours",
    "build_neighbours",
    "default_cache_dir",
    "retrieve",
]
