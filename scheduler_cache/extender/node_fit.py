# SPDX-License-Identifier: Apache-2.0
"""Filters and scores nodes; what was found for a shape is kept and followed. Pure.

Pods of one template come by the hundred, and between two of them a few nodes change: only these
are looked at anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from scheduler_cache.extender.card_table import CardTable, Counts, Mask, Places
from scheduler_cache.extender.reasons import NOT_KNOWN, sentences
from scheduler_cache.extender.shape import Shape
from scheduler_cache.extender.vector_fit import Scores, VectorFit
from scheduler_cache.inventory import NOT_REPORTED
from scheduler_cache.model import CardPolicy
from scheduler_cache.node_view import NodeView

# Each keeps ten bytes a node.
_SHAPES_KEPT = 256
_SENTENCES_KEPT = 4096
_NOT_SAID = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Filtered:
    """Which nodes take a pod, and why the others do not."""

    fitting: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    """By node: one sentence. Something may end there, or be preempted."""
    unresolvable: dict[str, str] = field(default_factory=dict)
    """By node: it would not fit even if nobody held anything."""
    unheard: bool = False
    """Nothing fits, and some of the nodes have not told this replica what they hold: a replica that
    hears reports would know better."""

    def failing(self, reasons: Mapping[str, str]) -> Filtered:
        """Return the same with some of the nodes that fit failed after all."""
        return replace(
            self,
            fitting=[name for name in self.fitting if name not in reasons],
            failed={**self.failed, **reasons},
        )

    def fitting_too(self, name: str) -> Filtered:
        """Return the same with a node that fits after all."""
        return Filtered(
            fitting=[*self.fitting, name],
            failed={each: why for each, why in self.failed.items() if each != name},
            unresolvable={each: why for each, why in self.unresolvable.items() if each != name},
        )


class NodeFit:
    """The nodes. `update` and `remove` follow the cluster; the rest only reads."""

    def __init__(self, default: CardPolicy = CardPolicy.BINPACK) -> None:
        self._default = default
        self._table = CardTable()
        self._found: OrderedDict[Shape, _Found] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def texts(self) -> int:
        """How many different models and refusals are kept."""
        return self._table.texts

    def update(self, view: NodeView) -> None:
        """Take a node's new view."""
        self._table.update(view)

    def remove(self, name: str) -> None:
        """Forget a node."""
        self._table.remove(name)

    def filter(self, shape: Shape, names: Sequence[str] | None = None) -> Filtered:
        """Return which nodes take a pod now, in the order given. `names`: None means all."""
        named = self._table.names if names is None else list(names)
        where = self._table.where(named)
        found = self._of(shape)
        known = where >= 0
        fits = found.fits[where] & known
        if fits.all():
            return Filtered(fitting=named)
        misfits = ~fits
        words = found.words(where[misfits & known], self._table)
        hopeful = found.hopeful[where] & known & misfits
        failed = dict(
            zip(compress(named, hopeful.tolist()), map(words, where[hopeful].tolist()), strict=True)
        )
        hopeless = misfits & ~hopeful
        unresolvable = dict(
            zip(
                compress(named, hopeless.tolist()),
                map(words, where[hopeless].tolist()),
                strict=True,
            )
        )
        return Filtered(
            fitting=list(compress(named, fits.tolist())),
            failed=failed,
            unresolvable=unresolvable,
            unheard=not fits.any() and self._table.refuse(where[known], NOT_REPORTED),
        )

    def why_not(self, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        """Return those of the nodes that do not take a pod, with the reason."""
        result = self.filter(shape, names)
        return result.failed | result.unresolvable

    def prioritize(self, shape: Shape, names: Sequence[str]) -> list[int]:
        """Return a score of 0..10 for each node, in the order given: best is what the policy
        prefers.
        """
        where = self._table.where(names)
        scores: list[int] = np.where(where >= 0, self._of(shape).scores[where], 0).tolist()
        return scores

    def _of(self, shape: Shape) -> _Found:
        """Return what is found for a shape, up to date."""
        found = self._found.get(shape)
        if found is None or found.layout != self._table.layout:
            found = self._found[shape] = _Found(shape, self._table, self._default)
        self._found.move_to_end(shape)
        if len(self._found) > _SHAPES_KEPT:
            self._found.popitem(last=False)
        found.follow(self._table)
        return found


class _Found:
    """What was found for one shape, by column of the table."""

    def __init__(self, shape: Shape, table: CardTable, default: CardPolicy) -> None:
        self._shape = shape
        self._default = default
        self.layout = table.layout
        self._version = table.version
        fit = VectorFit(table.cards(), default)
        self.fits: Mask = fit.fits(shape)
        self.scores: Scores = fit.scores(shape)
        self.hopeful: Mask = np.zeros(table.columns, np.bool_)
        self._said: Counts = np.full(table.columns, _NOT_SAID, np.int32)
        self._sentences: dict[str, int] = {}

    def follow(self, table: CardTable) -> None:
        """Look again at the nodes that changed."""
        if self._version == table.version:
            return
        changed = table.changed_since(self._version)
        self._version = table.version
        fit = VectorFit(table.cards(changed), self._default)
        self.fits[changed] = fit.fits(self._shape)
        self.scores[changed] = fit.scores(self._shape)
        self._said[changed] = _NOT_SAID

    def words(self, columns: Places, table: CardTable) -> _Words:
        """Make sure that everything is said about some columns, `hopeful` too; return the words."""
        if len(self._sentences) > _SENTENCES_KEPT:
            self._sentences.clear()
            self._said[:] = _NOT_SAID
        unsaid = np.unique(columns[self._said[columns] == _NOT_SAID])
        if len(unsaid):
            cards = table.cards(unsaid)
            said, which = sentences(cards, self._shape, self._default)
            index = np.array(
                [self._sentences.setdefault(each, len(self._sentences)) for each in said], np.int32
            )
            self._said[unsaid] = index[which]
            self.hopeful[unsaid] = VectorFit(cards, self._default).hopeful(self._shape)
        return _Words(list(self._sentences), self._said)


@dataclass(frozen=True, slots=True)
class _Words:
    """Says why a column does not take the pod."""

    sentences: Sequence[str]
    said: Counts

    def __call__(self, column: int) -> str:
        return NOT_KNOWN if column < 0 else self.sentences[self.said[column]]
