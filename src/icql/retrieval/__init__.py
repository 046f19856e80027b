"""Retrieval: which transitions of the dataset become the context Ω of a query state.

Metric × strategy × k; exact or approximate search; tables for s and s', cached by content.
"""

from icql.files import default_cache_dir
from icql.retrieval.cache import Neighbours, SearchReport
from icql.retrieval.metric import Space
from icql.retrieval.neighbours import build_neighbours, distances_of, find_space
from icql.retrieval.once import retrieve
from icql.retrieval.retriever import Retriever
from icql.settings.contexts import ContextSettings

__all__ = [
    "ContextSettings",
    "Neighbours",
    "Retriever",
    "SearchReport",
    "Space",
    "build_neighbours",
    "default_cache_dir",
    "distances_of",
    "find_space",
    "retrieve",
]
