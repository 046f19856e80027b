"""The nearest rows of other episodes, in one pass over all rows.

Where whole episodes are left out, the nearest rows are mostly those left out, and an index has to
be asked for more and more neighbours. Of few queries it is quicker to measure every row, by matrix
products in float32, with the rows sorted by episode: what is left out of a query is then one run of
them. Of every `GROUP` rows the least distance is kept. The k nearest rows lie in the k groups with
the least ones, so float64 ranks the rows of a few groups; the certificate is that of `exact.py`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from icql.retrieval.exact import certain
from icql.retrieval.index import Index
from icql.retrieval.metric import Ids, Points, Rows, squared_distances
from icql.retrieval.strategies import EpisodeRows, LeftOut

GROUP = 128  # rows whose least distance is kept
TILE = 32 * GROUP  # rows multiplied at once: the product with a block of queries stays in the cache
BLOCKS = (16, 256)  # queries at once: programs are compiled for these numbers alone
MARGINS = (2, 30)  # groups beyond k whose rows are ranked, tried in turn


class Scan:
    """All rows of an index in the order of their episodes, ready to be multiplied."""

    def __init__(self, index: Index, episodes: EpisodeRows) -> None:
        self.index, self.episodes, self.count = index, episodes, len(index.group)
        self._tiles = []
        for low in range(0, self.count, TILE):
            near = index.near[index.group[episodes.order[low : low + TILE]]]
            # |x|² - 2 x·q as one product; what fills the last tile is never near
            tile = np.zeros((TILE, near.shape[1] + 1), np.float32)
            tile[: len(near), :-1], tile[len(near) :, -1] = near, np.inf
            tile[: len(near), -1] = np.einsum("nd,nd->n", near, near)
            self._tiles.append(jnp.asarray(tile))

    def __call__(self, queries: Points, left_out: LeftOut, keep: int) -> tuple[Ids, Rows]:
        """Rows (Q, keep) nearest to embedded queries, and distances; -1 where there are no more."""
        ids = np.full((len(queries), keep), -1, np.int64)
        away = np.full(ids.shape, np.inf)
        size = BLOCKS[len(queries) > BLOCKS[0]]
        for low in range(0, len(queries), size):
            some = np.arange(low, min(low + size, len(queries)))
            ids[some], away[some] = self._block(queries[some], left_out.some(some), keep, size)
        return ids, away

    def _block(self, queries: Points, left_out: LeftOut, keep: int, size: int) -> tuple[Ids, Rows]:
        asked = self.index.centred(queries)
        least = self._least(asked, left_out, size) + (asked**2).sum(axis=1)[:, None]
        groups = least.shape[1]
        ids, squared = np.empty((len(queries), keep), np.int64), np.empty((len(queries), keep))
        pending = np.arange(len(queries))
        for margin in MARGINS:
            m = min(keep + margin, groups)
            order = np.argpartition(least[pending], min(m, groups - 1), axis=1)
            unseen = np.full(len(pending), np.inf)
            if m < groups:
                unseen = least[pending, order[:, m]]
            found = self._rank(queries[pending], order[:, :m], left_out.some(pending), keep)
            ids[pending], squared[pending] = found
            sure = certain(self.index, asked[pending], squared[pending, -1], unseen)
            pending = pending[~sure]
            if not len(pending):
                break
        for i in pending:  # among very many that are alike
            one = np.array([i])
            every = np.arange(groups)[None]
            ids[one], squared[one] = self._rank(queries[one], every, left_out.some(one), keep)
        away = self.index.distance(squared)
        return ids, np.where(ids < 0, np.inf, away)

    def _least(self, asked: Rows, left_out: LeftOut, size: int) -> Rows:
        """The least |x|² - 2 x·q of every group of rows for every query: (Q, groups)."""
        count = len(asked)
        factor = np.zeros((asked.shape[1] + 1, size), np.float32)
        factor[:-1, :count], factor[-1] = -2 * asked.T, 1.0
        starts, lengths = left_out.spans()
        spans = np.zeros((2, starts.shape[1], size), np.int32)
        spans[0, :, :count], spans[1, :, :count] = starts.T, (starts + lengths).T
        some = lengths > 0
        first, last = starts[some], (starts + lengths)[some]
        right, left_outs = jnp.asarray(factor), jnp.asarray(spans)
        parts = []
        for number, tile in enumerate(self._tiles):
            low = number * TILE
            if ((first < low + TILE) & (last > low)).any():
                parts.append(_least_of_others(tile, right, left_outs, jnp.int32(low)))
            else:
                parts.append(_least_of_all(tile, right))
        found = np.concatenate([np.asarray(part) for part in parts])
        return found[: -(-self.count // GROUP), :count].T.astype(np.float64)

    def _rank(
        self, queries: Points, groups: NDArray[Any], left_out: LeftOut, keep: int
    ) -> tuple[Ids, Rows]:
        """The nearest rows of some groups (Q, m) in float64, by (distance, id), and |x - y|²."""
        ids, squared = np.empty((len(queries), keep), np.int64), np.empty((len(queries), keep))
        width = groups.shape[1] * GROUP * queries.shape[1]
        size = max(1, self.index.room // width)
        for low in range(0, len(queries), size):
            some = np.arange(low, min(low + size, len(queries)))
            places = groups[some][:, :, None].astype(np.int64) * GROUP + np.arange(GROUP)
            places = places.reshape(len(some), -1)
            rows = self.episodes.order[np.minimum(places, self.count - 1)]
            measured = squared_distances(self.index.states, queries[some], rows)
            out = left_out.some(some).mask(np.arange(len(some)), rows) | (places >= self.count)
            measured[out], rows[out] = np.inf, -1
            far = np.where(out, np.inf, self.index.distance(measured))
            best = np.lexsort((rows, far))[:, :keep]
            ids[some] = np.take_along_axis(rows, best, 1)
            squared[some] = np.take_along_axis(measured, best, 1)
        return ids, squared


@jax.jit
def _least_of_all(tile: jax.Array, factor: jax.Array) -> jax.Array:
    """The least of every group (G, Q) of the rows of a tile."""
    product = jnp.matmul(tile, factor, precision="highest")
    return product.reshape(-1, GROUP, factor.shape[1]).min(axis=1)


@jax.jit
def _least_of_others(
    tile: jax.Array, factor: jax.Array, spans: jax.Array, low: jax.Array
) -> jax.Array:
    """The same of the rows outside every query's spans: first places and ends (2, e, Q)."""
    product = jnp.matmul(tile, factor, precision="highest")
    place = low + jnp.arange(len(tile), dtype=jnp.int32)[:, None, None]
    inside = ((place >= spans[0][None]) & (place < spans[1][None])).any(axis=1)
    kept = jnp.where(inside, jnp.float32(np.inf), product)
    return kept.reshape(-1, GROUP, factor.shape[1]).min(axis=1)
