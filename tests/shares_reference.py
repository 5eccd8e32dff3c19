"""How layers and heads share a budget, restated: PyramidKV's slope in fractions, AdaKV's choice over lists."""

from fractions import Fraction
from math import floor

from locret_reference import LocretReference


def pyramid(budget, fixed, layers, most):
    """Units per layer. fixed: of every layer; most: that there are besides."""
    free = budget - fixed
    last = max(1, free // 20)
    first = 2 * free - last
    if first > most:
        first = max(free, most)
        last = 2 * free - first
    lower = [first - floor(Fraction(first - last, max(1, layers - 1)) * at) for at in range(layers // 2)]
    middle = [free] if layers % 2 else []
    return [fixed + each for each in (*lower, *middle, *(2 * free - each for each in reversed(lower)))]


def adaptive(heads, protected, budget):
    """Positions that stay of every head. heads: for each {position: what orders its units}, oldest first; its newest
    `protected` stay, the best fifth of what the budget leaves besides, and then the best of all heads."""
    stay = [set(list(head)[len(head) - protected :]) for head in heads]
    for head, mine in zip(heads, stay, strict=True):
        others = sorted(head.keys() - mine, key=lambda p, head=head: (head[p], p), reverse=True)
        mine |= set(others[: (budget - protected) // 5])
    others = [(head[p], p, at) for at, head in enumerate(heads) for p in head.keys() - stay[at]]
    for _, position, at in sorted(others, reverse=True)[: len(heads) * budget - sum(map(len, stay))]:
        stay[at].add(position)
    return stay


class SharedLocret(LocretReference):
    """Locret whose budget layers or heads share. prompt: its tokens."""

    def __init__(self, *arguments, prompt, by_layer="uniform", by_head="uniform", **settings):
        super().__init__(*arguments, **settings)
        self.prompt, self.by_layer, self.by_head = prompt, by_layer, by_head

    @property
    def budgets(self):
        """Of the layers that act; the others keep their windows."""
        acting = [layer for layer in range(len(self.units)) if self.acts(layer)]
        if self.by_layer == "uniform":
            return dict.fromkeys(acting, self.budget)
        fixed = self.sink + self.stabilizers
        return dict(
            zip(acting, pyramid(self.budget, fixed, len(acting), self.prompt - self.local - fixed), strict=True)
        )

    def _evict(self, protected):
        for layer, heads in enumerate(self.units):
            if not self.acts(layer) or sum(map(len, heads)) <= self.budgets[layer] * len(heads):
                continue
            window = self.windows[layer]
            ranks = [{u.position: (window is None or self.tokens - u.position < window, at < self.sink, u.score)
                      for at, u in enumerate(units)} for units in heads]  # fmt: skip
            if self.by_head == "adaptive":
                stay = adaptive(ranks, protected, self.budgets[layer])
            else:
                stay = [best(rank, protected, self.budgets[layer]) for rank in ranks]
            heads[:] = [[u for u in units if u.position in mine] for units, mine in zip(heads, stay, strict=True)]


def best(head, protected, budget):
    """Positions that stay of a head with a budget of its own."""
    newest = list(head)[len(head) - protected :]
    return set(sorted(head, key=lambda p: (p in newest, head[p], p), reverse=True)[:budget])
