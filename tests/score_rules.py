"""What policies with a budget rank units by, restated from the notes of a run token by token."""

import math
import statistics

import torch

from evict_reference import best, keys_and_values, turned


def rule(policy, model, protected=0):
    """For `run_reference`: each head keeps its newest `protected` and its best others."""

    def stays(notes, live):
        return best(live, SCORES[policy.name](policy, model, notes, live), policy.budget, protected, notes.window)

    return stays


def knorm(policy, model, notes, live):
    return {p: -(sum(float(x) ** 2 for x in key) ** 0.5) for p, key, _ in notes.units}


def keydiff(policy, model, notes, live):
    """Minus the cosine of the angle between a key and the mean of the directions of all that are held."""
    keys, _ = keys_and_values(model, policy, notes)
    directions = [key / key.norm() for key in keys]
    mean = sum(directions) / len(directions)
    return {p: -float(each @ mean / mean.norm()) for p, each in zip(live, directions, strict=True)}


def lagkv(policy, model, notes, live):
    both, lag = keys_and_values(model, policy, notes), policy.lag
    score, starts = dict.fromkeys(live, math.inf), range(policy.sink, len(live) - 2 * lag + 1, lag)
    for start in starts:
        mine, following = range(start, start + lag), range(start + lag, start + 2 * lag)
        shares = [shares_of([of[i] for i in mine], [of[i] for i in following]) for of in both]
        figures = [(key + value) / 2 for key, value in zip(*shares, strict=True)]
        for i, figure in zip(mine, figures, strict=True):
            score[live[i]] = sum((other, at) < (figure, i) for at, other in zip(mine, figures, strict=True))
    return score


def shares_of(partition, following):
    """Of each vector of a partition, its share of the standard deviations in the frame of the following one."""
    low = [min(float(x) for x in channel) for channel in zip(*following, strict=True)]
    high = [max(float(x) for x in channel) for channel in zip(*following, strict=True)]
    framed = [
        [(float(x) - a) / (b - a) if b > a else 0.0 for x, a, b in zip(row, low, high, strict=True)]
        for row in partition
    ]
    spreads = [statistics.stdev(row) for row in framed]
    powers = [math.exp(each - max(spreads)) for each in spreads]
    return [power / sum(powers) for power in powers]


def expected_attention(policy, model, notes, live):
    """Every query head by itself, with the rotation as a matrix."""
    scale = model.model.layers[0].self_attn.scaling
    keys, values = keys_and_values(model, policy, notes)
    first = len(live) if policy.positions == "compact" else len(notes.ids)
    width = keys.shape[1]
    unit = torch.eye(width)
    rotation = torch.stack([turned(model, unit, [first + i] * width).T for i in range(policy.ahead)]).mean(0)
    shares = []
    for head in torch.stack(notes.queries[policy.sink :], 1):  # [rows, head_dim]
        mean = rotation @ head.mean(0)
        covariance = rotation @ torch.cov(head.T, correction=0) @ rotation.T
        logits = [scale * mean @ k + scale**2 / 2 * k @ covariance @ k for k in keys[policy.sink :]]
        shares.append(torch.stack(logits).softmax(0))
    found = torch.stack(shares).mean(0)
    if policy.weigh == "uniform":
        found = found * values[policy.sink :].norm(dim=1)
    return dict(zip(live, [float("inf")] * policy.sink + found.tolist(), strict=True))


def tova(policy, model, notes, live):
    """The weights of the last row, as the mean over all heads."""
    return {p: statistics.mean(head.attention[-1].get(p, 0.0) for head in notes.heads) for p in live}


def h2o(policy, model, notes, live):
    return {p: sum(row.get(p, 0.0) for row in notes.attention) for p in live}


def scissorhands(policy, model, notes, live):
    return {p: -sum(p in row and row[p] < 1 / len(row) for row in voters(policy, notes)) for p in live}


def snapkv(policy, model, notes, live):
    votes = [sum(row.get(p, 0.0) for row in voters(policy, notes)) / policy.window for p in live[: -policy.window]]
    half = policy.kernel // 2
    padded = [0.0] * half + votes + [0.0] * half
    pool = max if policy.pooling == "max" else lambda values: sum(values) / policy.kernel
    pooled = [pool(padded[i : i + policy.kernel]) for i in range(len(votes))]
    return dict.fromkeys(live, 0.0) | dict(zip(live, pooled, strict=False))


def voters(policy, notes):
    return notes.attention[notes.boundaries[-1] :][-policy.window :]


SCORES = {each.__name__: each for each in (knorm, keydiff, lagkv, expected_attention, tova, h2o, scissorhands, snapkv)}
