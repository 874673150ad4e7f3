# SPDX-License-Identifier: Apache-2.0
"""The cards of all nodes as columns of numbers, followed node by node. Pure.

A node is a column and its cards are the column's rows, in the order of their UUIDs, so that numpy
runs over all nodes in one go, row by row. A node that changes costs its own column alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from scheduler_cache.model import Request
from scheduler_cache.node_view import NodeView

Mask = NDArray[np.bool_]
Bytes = NDArray[np.int64]
Counts = NDArray[np.int32]
Places = NDArray[np.int64]
"""Numbers of columns."""

# Texts that no card bears any more go once so many have come together.
_OLD_TEXTS = 4096
_MOST_SLOTS = 1 << 30


@dataclass(frozen=True, slots=True)
class Cards:
    """Some columns of the table; every array has a row for each card and a column for each node."""

    columns: Places
    """Which columns these are, in ascending order."""
    views: Sequence[NodeView | None]
    """What each column was made of."""
    valid: Mask
    """There is a card at all."""
    healthy: Mask
    overbooked: Mask
    held: Mask
    """Somebody holds it exclusively."""
    used: Mask
    memory: Bytes
    free_memory: Bytes
    free_cores: Counts
    free_slots: Counts
    model: Counts
    """Index in `models`."""
    refusal: Counts
    """Index in `refusals`; 0: new slices may be placed on it."""
    models: Sequence[str]
    refusals: Sequence[str]
    places: Mapping[str, tuple[int, int]]
    """By UUID: row, and column of the table."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def ready(self) -> Mask:
        """The cards that take something, if it is small enough."""
        open_ = self.valid & self.healthy & ~self.overbooked & ~self.held
        ready: Mask = open_ & (self.refusal == 0) & (self.free_slots >= 1)
        return ready

    def allowed(self, request: Request) -> Mask:
        """Return which cards the request's lists of UUIDs and models allow."""
        asked = [entry for entry in request.uuids if not entry.startswith("!")]
        allowed = np.full(self.valid.shape, not asked)
        for uuid in asked:
            self._set(allowed, uuid, True)
        for entry in request.uuids:
            if entry.startswith("!"):
                self._set(allowed, entry[1:], False)
        if request.models:
            wanted = [each.casefold() for each in request.models if not each.startswith("!")]
            denied = [each[1:].casefold() for each in request.models if each.startswith("!")]
            by_model = [
                (not wanted or any(each in model for each in wanted))
                and not any(each in model for each in denied)
                for model in map(str.casefold, self.models)
            ]
            allowed &= np.array(by_model or [False])[self.model]
        return allowed

    def some(self, nodes: Places) -> Cards:
        """Return some of the columns, by their places among these, in ascending order."""
        return replace(
            self,
            columns=self.columns[nodes],
            views=[self.views[i] for i in nodes.tolist()],
            **{name: getattr(self, name)[:, nodes] for name in _ARRAYS},
        )

    def _set(self, mask: Mask, uuid: str, value: bool) -> None:
        row, column = self.places.get(uuid, (0, -1))
        at = int(np.searchsorted(self.columns, column))
        if at < len(self.columns) and self.columns[at] == column:
            mask[row, at] = value


_ARRAYS = (
    "valid",
    "healthy",
    "overbooked",
    "held",
    "used",
    "memory",
    "free_memory",
    "free_cores",
    "free_slots",
    "model",
    "refusal",
)


class CardTable:
    """The columns of every node that is known. Only `update` and `remove` change them."""

    _valid: Mask
    _healthy: Mask
    _overbooked: Mask
    _held: Mask
    _used: Mask
    _memory: Bytes
    _free_memory: Bytes
    _free_cores: Counts
    _free_slots: Counts
    _model: Counts
    _refusal: Counts
    _changed: Places
    """The version in which each column last changed."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}
        self._views: list[NodeView | None] = []
        self._unused: list[int] = []
        self.layout = 0
        """Counts how often everything was laid out anew: column numbers and indexes then changed.
        """
        self.version = 0
        """Counts the changes."""
        self._most_texts = 0
        self._lay_out(rows=8, columns=64)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, name: str) -> bool:
        return name in self._at

    @property
    def columns(self) -> int:
        """How many columns there are, used or not."""
        return len(self._views)

    @property
    def names(self) -> list[str]:
        """The nodes that are known."""
        return list(self._at)

    @property
    def texts(self) -> int:
        """How many different models and refusals are kept."""
        return len(self._models) + len(self._refusals)

    def update(self, view: NodeView) -> None:
        """Take a node's new view."""
        rooms = view.rooms()
        if len(rooms) > len(self._valid):
            self._lay_out(rows=2 * len(rooms), columns=self.columns)
        if self.texts > self._most_texts:
            self._lay_out(rows=0, columns=self.columns)
        if view.name not in self._at:
            if not self._unused:
                self._lay_out(rows=0, columns=2 * self.columns)
            self._at[view.name] = self._unused.pop()
        at = self._at[view.name]
        self._clear(at)
        self._views[at] = view
        self._places.update((room.card.uuid, (row, at)) for row, room in enumerate(rooms))
        rows = slice(len(rooms))
        self._valid[rows, at] = True
        self._healthy[rows, at] = [room.card.healthy for room in rooms]
        self._overbooked[rows, at] = [room.overbooked for room in rooms]
        self._held[rows, at] = [bool(room.use.exclusive_holders) for room in rooms]
        self._used[rows, at] = [bool(room.use.slices) for room in rooms]
        self._memory[rows, at] = [room.card.memory_bytes for room in rooms]
        self._free_memory[rows, at] = [room.free_bytes for room in rooms]
        self._free_cores[rows, at] = [room.free_cores_percent for room in rooms]
        self._free_slots[rows, at] = [
            min(room.card.slots - room.use.slices, _MOST_SLOTS) for room in rooms
        ]
        self._model[rows, at] = [_index(self._models, room.card.model) for room in rooms]
        self._refusal[rows, at] = [
            _index(self._refusals, view.refused(room.card.uuid)) for room in rooms
        ]

    def remove(self, name: str) -> None:
        """Forget a node."""
        at = self._at.pop(name, None)
        if at is not None:
            self._clear(at)
            self._views[at] = None
            self._unused.append(at)

    def where(self, names: Sequence[str]) -> Places:
        """Return the columns of nodes, -1 for those that are not known."""
        found = map(self._at.get, names, repeat(-1))
        return np.fromiter(found, np.int64, len(names))

    def refuse(self, columns: Places, why: str) -> bool:
        """Return whether a card of some columns is refused for exactly this reason."""
        index = self._refusals.get(why)
        return index is not None and bool((self._refusal[:, columns] == index).any())

    def changed_since(self, version: int) -> Places:
        """Return the columns that changed after a version."""
        return np.flatnonzero(self._changed > version)

    def cards(self, columns: Places | None = None) -> Cards:
        """Return some columns, in ascending order, or all without a copy."""
        some: Places | slice = slice(None) if columns is None else columns
        at = np.arange(self.columns) if columns is None else columns
        return Cards(
            columns=at,
            views=self._views if columns is None else [self._views[i] for i in at.tolist()],
            valid=self._valid[:, some],
            healthy=self._healthy[:, some],
            overbooked=self._overbooked[:, some],
            held=self._held[:, some],
            used=self._used[:, some],
            memory=self._memory[:, some],
            free_memory=self._free_memory[:, some],
            free_cores=self._free_cores[:, some],
            free_slots=self._free_slots[:, some],
            model=self._model[:, some],
            refusal=self._refusal[:, some],
            models=list(self._models),
            refusals=list(self._refusals),
            places=self._places,
        )

    def _clear(self, at: int) -> None:
        view = self._views[at]
        for uuid in view.inventory.cards if view else ():
            # Another node may say by now that the card is its own.
            if self._places.get(uuid, (0, -1))[1] == at:
                del self._places[uuid]
        for array in self._arrays:
            array[:, at] = 0
        self.version += 1
        self._changed[at] = self.version

    def _lay_out(self, *, rows: int, columns: int) -> None:
        """Make room, and fill it from the views that are known."""
        views = [view for view in self._views if view is not None]
        shape = (max(rows, len(self._valid) if self._views else 0), columns)
        self.layout += 1
        self._valid = np.zeros(shape, np.bool_)
        self._healthy = np.zeros(shape, np.bool_)
        self._overbooked = np.zeros(shape, np.bool_)
        self._held = np.zeros(shape, np.bool_)
        self._used = np.zeros(shape, np.bool_)
        self._memory = np.zeros(shape, np.int64)
        self._free_memory = np.zeros(shape, np.int64)
        self._free_cores = np.zeros(shape, np.int32)
        self._free_slots = np.zeros(shape, np.int32)
        self._model = np.zeros(shape, np.int32)
        self._refusal = np.zeros(shape, np.int32)
        self._arrays: tuple[NDArray[np.generic], ...] = (
            self._valid,
            self._healthy,
            self._overbooked,
            self._held,
            self._used,
            self._memory,
            self._free_memory,
            self._free_cores,
            self._free_slots,
            self._model,
            self._refusal,
        )
        self._changed = np.zeros(columns, np.int64)
        self._models: dict[str, int] = {}
        self._refusals: dict[str, int] = {"": 0}
        self._places: dict[str, tuple[int, int]] = {}
        self._at = {}
        self._views = [None] * columns
        self._unused = list(range(columns - 1, -1, -1))
        self._most_texts = sys.maxsize
        for view in views:
            self.update(view)
        self._most_texts = 2 * self.texts + _OLD_TEXTS


def _index(indexes: dict[str, int], text: str) -> int:
    return indexes.setdefault(text, len(indexes))
