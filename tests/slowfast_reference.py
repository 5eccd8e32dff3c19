"""Slow-fast reading row by row: the stock forward over the whole text, and a mask for each row, layer and head.

The trigger looks at tokens only, and a selection at the rows of its own layer only, so one forward holds all steps.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "slowfast reference"


@dataclass
class Rules:
    """When a step is slow, clause by clause; tokens are of any kind."""

    enders: frozenset
    pairs: frozenset = frozenset()
    skipped: frozenset = frozenset()
    interval: int = 96
    min_gap: int = 16
    cooldown: int = 2
    on: str = "start"
    cold: int = 0
    awaiting: bool = False
    step: int = 0
    refreshed: int = 0  # the last slow step
    before: object = None

    def slow(self, token, forced=False):
        self.step += 1
        ender = token in self.enders or (self.before, token) in self.pairs
        fired = False
        if self.cold == 0 and ender:
            self.cold, self.awaiting = self.cooldown, True
            fired = self.on == "end"
        elif self.cold > 0:
            self.cold -= 1
        if self.on == "start" and self.awaiting and token not in self.enders and token not in self.skipped:
            self.awaiting, self.cold, fired = False, max(self.cold, self.cooldown), True
        self.before = token
        since = self.step - self.refreshed
        if forced or (fired and since >= self.min_gap) or since >= self.interval:
            self.refreshed = self.step
            return True
        return False


@dataclass
class Every:
    """Every `interval` steps."""

    interval: int
    step: int = 0

    def slow(self, token, forced=False):
        self.step += 1
        return forced or self.step % self.interval == 0


@dataclass
class Choice:
    """What one layer reads: first and selected units per KV head, and since which row the others are recent.

    scores: per KV head, those of what was selected.
    """

    chosen: list
    scores: list
    row: int


@dataclass
class SlowFastReference:
    """Any family. rules: see above. windows of the layers come from the model's own calls.

    slow: per decode step; reads[layer][step][kv_head]: the positions a decode step reads; selected[layer]: {row: per
    KV head the positions selected there, ascending}.
    """

    model: object
    rules: object
    windows: tuple
    sink: int
    budget: int
    recent: int
    bootstrap: int = 16
    recent_mode: str = "sliding"
    layer_groups: int = 1
    publish_delay: int = 0
    selector: str = "attention"
    options: dict = field(default_factory=dict)  # of `scores`
    slow: list = field(default_factory=list)
    reads: dict = field(default_factory=dict)
    selected: dict = field(default_factory=dict)

    def logits(self, ids, prompt):
        """After the prompt ids[:prompt] and after every other token, fed alone: [len(ids) - prompt + 1, vocab]."""
        self.prompt, self.slow = prompt, [False]
        for place in range(prompt, len(ids)):
            # Nothing can have been selected before some layer held enough; what a slow step selects counts after it.
            forced = all(self._units(place - 1, window) < self._total for window in self.windows)
            self.slow.append(self.rules.slow(ids[place], forced))
        AttentionInterface.register(NAME, self._attend)
        stock = self.model.config._attn_implementation
        self.model.config._attn_implementation = NAME
        try:
            with torch.inference_mode():
                logits = self.model(torch.tensor([ids]), use_cache=False).logits[0].float()
        finally:
            self.model.config._attn_implementation = stock
        return logits[prompt - 1 :]

    @property
    def _total(self):
        return self.sink + self.budget + self.recent

    def _units(self, row, window):
        return min(row + 1, window or math.inf)

    def _attend(self, module, q, k, v, _, *, scaling, sliding_window=None, softcap=None, s_aux=None, **__):
        """q: [1, q_heads, rows, head_dim] -> [1, rows, q_heads, head_dim]."""
        layer, group = module.layer_idx, q.shape[1] // k.shape[1]
        window = sliding_window or math.inf
        assert window == (self.windows[layer] or math.inf)
        logits = q[0] @ k[0].repeat_interleave(group, 0).mT * scaling  # [q_heads, rows, rows]
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        at = torch.arange(q.shape[2])
        distance = at[:, None] - at
        seen = ((distance >= 0) & (distance < window)).repeat(k.shape[1], 1, 1)  # [kv_heads, rows, rows]
        dense = seen.clone()
        self._walk(layer, window, logits.unflatten(0, (-1, group)), k[0].norm(dim=-1), dense, seen)
        logits = logits.masked_fill(~seen.repeat_interleave(group, 0), -math.inf)
        if s_aux is not None:
            logits = torch.cat((logits, s_aux[:, None, None].expand(-1, len(at), 1)), -1)
        out = logits.softmax(-1)[..., : len(at)] @ v[0].repeat_interleave(group, 0)
        return out.transpose(0, 1)[None], None

    def _walk(self, layer, window, logits, norms, dense, seen):
        """Narrow `seen` row by row. logits: [kv_heads, group, rows, rows]."""
        current, coming, newest, turn = None, [], None, 0
        self.reads[layer], self.selected[layer] = [], {}
        for step, slow in enumerate(self.slow):
            row = self.prompt - 1 + step
            for due, choice in coming:
                current = choice if due == step else current
            turn += slow
            anew = step == 0 or current is None or (slow and layer % self.layer_groups == turn % self.layer_groups)
            if not anew:
                allowed = torch.zeros_like(seen[:, row])
                for head, positions in enumerate(current.chosen):
                    allowed[head, positions] = True
                start = (current.row if self.recent_mode == "anchored" else row) + 1 - self.recent
                allowed[:, max(0, start) :] = True
                seen[:, row] &= allowed
            self.reads[layer].append([set(head.nonzero().flatten().tolist()) for head in seen[:, row]])
            first = int(max(0, row + 1 - window))
            if not anew or row + 1 - first < self._total:
                continue
            low, high = first + self.sink, row + 1 - self.recent
            voters = range(max(0, row + 1 - self.bootstrap), row + 1) if step == 0 else [row]
            votes = logits[:, :, list(voters)].masked_fill(~dense[:, None, list(voters)], -math.inf)
            votes = votes[..., first : row + 1].flatten(1, 2)  # [kv_heads, rows that vote, units]
            before = [{}] * len(norms) if newest is None else newest.scores
            last = torch.tensor([[old.get(place, -math.inf) for place in range(low, high)] for old in before])
            behind = torch.tensor([row - voter for voter in voters] * logits.shape[1])
            table = scores(
                votes[..., low - first : high - first], norms[:, low:high], last, self.selector,
                total=votes.logsumexp(-1), behind=behind, **self.options,
            )  # fmt: skip
            selected = [[low + place for place in best(head, self.budget)] for head in table.tolist()]
            self.selected[layer][row] = selected
            known = [
                {place: float(head[place - low]) for place in mine} for head, mine in zip(table, selected, strict=True)
            ]
            newest = Choice([[*range(first, low), *head] for head in selected], known, row)
            if current is None or not self.publish_delay:
                current = newest
            else:
                coming.append((step + 1 + self.publish_delay, newest))


def best(row, count):
    """The places of the highest, ascending; of equals the lower."""
    return sorted(sorted(range(len(row)), key=lambda j: (-row[j], j))[:count])


def scores(
    logits, norms, last, selector, *, total=None, alpha=0.5, prior=True, suppression=True, cross_head=True,
    fusion="forward", pool=17, memory=0.9, far=0.25, half_life=32, behind=None,
):  # fmt: skip
    """[kv_heads, m] float64, step by step; logarithms but for "peaks".

    logits: [kv_heads, rows, m]; norms: [kv_heads, m]; last: the scores of what was selected last, -inf for the others;
    total: [kv_heads, rows], the log-sum-exp of the logits of all units that a row sees. behind: [rows], tokens from a
    row's to the newest one's.
    """
    if selector == "peaks":
        weights = torch.exp(logits.double() - total.double()[..., None])
        if behind is not None and half_life is not None:
            weights = weights * 0.5 ** (behind.double()[:, None] / half_life)
        weights = weights.sum(1)
        spread = reached(weights, pool) + far * reached(weights, 3 * pool)
        return torch.maximum(spread, memory * last.double().clamp(min=0))
    f = torch.stack([power_mean(head[(head > -math.inf).any(-1)].double(), alpha) for head in logits])
    if selector == "attention":
        return f.log()
    if selector == "pooled":
        return near(f.log(), pool // 2)
    norms = norms.double().clamp(min=1e-12)
    if selector == "persist":
        back = torch.arange(f.shape[1], 0, -1)
        r = normal(norms**-0.5 * (0.05 + 0.5 * (last > -math.inf) + 0.5 * 2.0 ** (-back / 1024)))
        return softly(fuse(f, r, torch.full((len(f), 1), 0.25), fusion).log(), 4)
    s = f.log()
    if prior:
        r = structural(norms)
        s = fuse(f, r, mixing(f, r, 0.25 if logits.shape[1] > 1 else 0.35), fusion).log()
    if suppression:
        s = softly(s, 16)
    if cross_head and len(s) > 2:
        s = s + 0.85 * (s / 2).softmax(0).clamp(min=1e-12).log()
    return s


def reached(weights, width):
    """The sum of each and of the `width - 1` before it."""
    return torch.stack([weights[:, max(0, j - width + 1) : j + 1].sum(1) for j in range(weights.shape[1])], 1)


def power_mean(rows, alpha):
    """f, [m] float64, of logits [rows, m], each row of which sees something."""
    p = torch.stack([row.softmax(-1) for row in rows])
    if alpha == 0:
        return normal(p.log().mean(0).exp()[None])[0]
    return normal(((p**alpha).mean(0) ** (1 / alpha))[None])[0]


def structural(norms):
    m = norms.shape[1]
    u = torch.arange(m, dtype=torch.float64) / max(m - 1, 1)
    beta = -math.log(0.6) / 0.9
    delta = -beta * u**1.8 + 0.4 * (1 - u).clamp(min=1e-12).log()
    return normal(torch.exp(-0.5 * norms.log() + 0.7 * delta))


def mixing(f, r, most):
    """[kv_heads, 1]: what makes |(1 - x) f + x r| smallest, clipped."""
    best = ((f * f).sum(-1) - (f * r).sum(-1)) / ((f - r) ** 2).sum(-1).clamp(min=1e-12)
    return best.clamp(0, most)[:, None]


def fuse(f, r, weight, fusion):
    return normal((1 - weight) * f + weight * r if fusion == "forward" else f ** (1 - weight) * r**weight)


def softly(log_q, reach):
    return log_q - (near(log_q, reach) - log_q)


def near(values, reach):
    """The highest within `reach` places, for each."""
    m = values.shape[1]
    return torch.stack([values[:, max(0, j - reach) : j + reach + 1].amax(1) for j in range(m)], 1)


def normal(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)
