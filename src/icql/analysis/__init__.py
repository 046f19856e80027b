"""The paper's analyses of critics: what they say of the same states, and how they come to it."""

from icql.analysis.values import CriticValues, Values, agreement, c_statistics, values_of

__all__ = ["CriticValues", "Values", "agreement", "c_statistics", "values_of"]
