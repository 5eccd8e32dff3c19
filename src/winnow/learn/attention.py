"""The attention of one segment of rows over itself, with gradients."""

from typing import Any

import torch
from torch import Tensor

from winnow.kernels.attend.reference import attend_reference
from winnow.kernels.attend.sdpa import attend_sdpa
from winnow.kernels.merge import merge


def attend_segment(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Causal attention of rows at ascending positions; a window is counted in positions.

    q: [rows, q_heads, head_dim]; k, v: [kv_heads, rows, head_dim]; positions: [rows]; the rest as `kernels.attend`.
    Returns [rows, q_heads, head_dim].
    """
    if softcap is None and sinks is None:
        return attend_sdpa(q, k, v, positions, positions, scale=scale, past=0, window=window)
    return attend_reference(q, k, v, positions, positions, scale=scale, window=window, softcap=softcap, sinks=sinks)[0]


def attend_alone(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    *,
    anchors: int,
    recent: int = 1,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """The same where the rows after the first `anchors` see only these and the last `recent`, themselves included."""
    special: dict[str, Any] = {"scale": scale, "softcap": softcap}
    rest, near = positions[anchors:], recent if window is None else min(recent, window)
    itself = (q[anchors:], k[:, anchors:], v[:, anchors:], rest, rest)
    if not anchors:
        return attend_reference(*itself, window=near, sinks=sinks, **special)[0]
    first = (k[:, :anchors], v[:, :anchors])
    seen = attend_reference(q[anchors:], *first, rest, positions[:anchors], window=window, sinks=sinks, **special)
    among = attend_segment(q[:anchors], *first, positions[:anchors], window=window, sinks=sinks, **special)
    # A sink is one more logit, to be counted once.
    return torch.cat([among, merge([seen, attend_reference(*itself, window=near, **special)])])
