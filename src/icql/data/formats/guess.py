"""placeholder"""

from collections.abc import Sequence


def by_name(header: Sequence[str]) -> str:
    """x"""
    return ""
