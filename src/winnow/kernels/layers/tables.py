"""What the kernel is told, as rows of int64: addresses in bytes, counts, and 0 for what is not there."""

# A layer: the weights of its norms, then its seven products, each of which takes `PART` places.
NORM, POST_NORM, QUERY_NORM, KEY_NORM, PARTS = range(5)
PART = 8
QUERY, KEY, VALUE, OUTPUT, GATE, UP, DOWN = (PARTS + PART * index for index in range(7))
LAYER = PARTS + 7 * PART

# A product: what `PackedWeight.facts` says, its kind (DENSE: floats), whether there are minima, the address of a bias.
DATA, ROW_BYTES, OUTS, COLUMNS, GROUP, KIND, MINIMA, BIAS = range(PART)
DENSE = -1

# Where a row's unit goes in a layer, the bytes from one KV head to the next, its cos and sin, and those with which its
# queries meet runs that are LIMITED; COS 0: not rotated.
KEYS, VALUES, STRIDE, COS, SIN, LIMITED_COS, LIMITED_SIN = range(7)
PLACE = 7

# What is read: a KV head of a row (row * kv_heads + head), the first key and value of a run of units, how many, and
# whether the row's queries are rotated for it by LIMITED_COS.
READER, RUN_KEYS, RUN_VALUES, UNITS, LIMITED = range(5)
RUN = 5

# The whole call. HIDDEN: [ROWS, WIDTH], in and out; ROWS: 1 or a multiple of 4, of which LIVE are rows, the rest room.
# SHARES: [layers, THREADS + 1], the runs each thread reads; HEADS: [layers, LIVE * KV_HEADS + 1], the runs of each.
# WORK, SCRATCH, BUFFER: memory, with the bytes of one run's and one thread's part.
(
    LAYERS, PLACES, RUNS, SHARES, HEADS, HIDDEN, BUFFER, WORK, WORK_BYTES, SCRATCH, SCRATCH_BYTES,
    ROWS, LIVE, WIDTH, MLP, Q_HEADS, KV_HEADS, HEAD_DIM, THREADS,
) = range(19)  # fmt: skip
FRAME = 19


def activations(rows: int, width: int, mlp: int, q_heads: int, kv_heads: int, head_dim: int) -> int:
    """Values that BUFFER holds: normed rows, projections, limited queries, what attention gave, outputs, gates, ups."""
    return rows * (2 * width + (3 * q_heads + 2 * kv_heads) * head_dim + 2 * mlp)
