"""What the kernel is told, as rows of int64: addresses in bytes, counts, and 0 for what is not there.

A float lies in the lower half of its place, as float32.
"""

# A layer: the weights of its norms and how they are used, facts of its attention and its MLP, then its seven products,
# each of which takes `PART` places. ROPE_HALF: whether cos and sin are bfloat16; SHARE: what the outputs of attention
# and of the MLP are multiplied by before they are added to the rows.
(
    BEFORE_ATTENTION, AFTER_ATTENTION, BEFORE_MLP, AFTER_MLP, QUERY_NORM, KEY_NORM, NORM_KIND, EPS, ALL_HEADS,
    ROPE_HALF, SCALE, SOFTCAP, ACTIVATION, SHARE, PARTS,
) = range(15)  # fmt: skip
PART = 12
QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN = (PARTS + PART * index for index in range(7))
LAYER = PARTS + 7 * PART

# NORM_KIND: the quotient x / rms(x) is rounded before it is multiplied, or only the product is, or only that, of
# weights that count from 1. ALL_HEADS: queries, and keys, are normed over all heads at once, not head by head.
QUOTIENT_ROUNDED, PRODUCT_ROUNDED, FROM_ONE = range(3)

# ACTIVATION; GELU: with the hyperbolic tangent.
SILU, GELU = range(2)

# A product: what `PackedWeight.facts` says, its kind (DENSE: floats), whether there are minima, the address of a bias,
# and what an adapter adds: of each RANK a row of COLUMNS values that make one of x, and one, of OUTS, that it is
# multiplied by, RANK_BYTES from one to the next; RANK 0: nothing.
DATA, ROW_BYTES, OUTS, COLUMNS, GROUP, KIND, MINIMA, BIAS, RANK, RANK_DOWN, RANK_UP, RANK_BYTES = range(PART)
DENSE = -1

# Where a row's unit goes in a layer, the bytes from one KV head to the next, its cos and sin, and those with which its
# queries meet runs that are LIMITED; COS 0: not rotated.
KEYS, VALUES, STRIDE, COS, SIN, LIMITED_COS, LIMITED_SIN = range(7)
PLACE = 7

# What is read: by a KV head of a row (row * kv_heads + head) and of those behind it, READERS rows in all; the first key
# and value of a run of units, how many, and whether the rows' queries are rotated for it by LIMITED_COS. INDEX: where
# the numbers of the units are, int64, counted from those first ones on, ascending, of which those in [LOW, HIGH) are
# read; 0: they lie side by side. KEPT: where the logits of the row go, float32, KEPT_ROW bytes from one query head to
# the next. RUN_FORM: where it is said how units are held as codes (`quantize/tables.py`), of which the first is in slot
# FIRST; 0: they are not. ORDER: where 0, 1, 2 .. are, int64: the units are those rows' own, each of which sees those up
# to its own; 0: every row sees all.
READER, RUN_KEYS, RUN_VALUES, UNITS, LIMITED, INDEX, LOW, HIGH, KEPT, KEPT_ROW, RUN_FORM, FIRST, READERS, ORDER = range(
    14
)
RUN = 14

# What a KV head of a row chooses by its query before it reads: COUNT of ASKED pages, or units, and where the numbers of
# their units go. ASKED 0: nothing. Of pages there are the units of one and the least and the greatest keys of the
# first; PAGE 0: of units the signs of their keys (`kernels/signs`), lengths, centre, rotation, and how many of the
# first block are SKIPPED.
ASKED, COUNT, CHOSEN, PAGE, LEAST, GREATEST, CODES, LENGTHS, CENTRE, TURN, SKIPPED = range(11)
CHOICE = 11

# The whole call. HIDDEN: [ROWS, WIDTH], in and out; ROWS: 1 or a multiple of 4, of which LIVE are rows, the rest room.
# SHARES: [layers, THREADS + 1], the runs each thread reads; HEADS: [layers, LIVE * KV_HEADS + 1], the runs of each
# that is the first of those which read them.
# CHOICES: [layers, LIVE * KV_HEADS], or 0 where nobody chooses.
# WORK, SCRATCH, BUFFER: memory, with the bytes of one run's and one thread's part.
(
    LAYERS, PLACES, RUNS, SHARES, HEADS, CHOICES, HIDDEN, BUFFER, WORK, WORK_BYTES, SCRATCH, SCRATCH_BYTES,
    ROWS, LIVE, WIDTH, MLP, Q_HEADS, KV_HEADS, HEAD_DIM, THREADS, TEAM, STAGES,
) = range(22)  # fmt: skip
FRAME = 22

# TEAM: `team.TEAM` zeros; THREADS: into how many parts their work is cut. STAGES: which parts of
# the layers, as a sum; where attention is left out, whoever calls computes it between two calls.
BEFORE, ATTENTION, AFTER = 1, 2, 4


def activations(rows: int, width: int, mlp: int, q_heads: int, kv_heads: int, head_dim: int) -> int:
    """Values that BUFFER holds: normed rows, projections, limited queries, what attention gave, outputs, gates, ups."""
    return rows * (2 * width + (3 * q_heads + 2 * kv_heads) * head_dim + 2 * mlp)
