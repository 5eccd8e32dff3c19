"""Few rows through decoder layers, with Numba: norm, projections, rotation, attention, MLP, without a call between.

A step of few rows is bounded by reading the weights once, if nothing else takes time, and driving a layer's modules
takes as much time as its weights do. Threads take runs of outputs of every product, and equal shares of all units that
are read. Every function takes the address of the frame, of a layer's row in its table, and `half`: whether activations,
and weights of norms and dense products, are bfloat16 or float32.
"""

from numba import njit

from winnow.kernels.attend.cpu_codes import attend_codes, codes_floats
from winnow.kernels.attend.cpu_decode import attend_run, merge_runs
from winnow.kernels.attend.softmax import ZERO, copy
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.layers import tables as t
from winnow.kernels.layers.low_rank import adapt
from winnow.kernels.layers.rows import add_share, gate_with, normalise, rotate
from winnow.kernels.linear.cpu import linear_part
from winnow.kernels.packed.cpu import OUT, packed_part
from winnow.kernels.pages.cpu import choose_pages, room_floats
from winnow.kernels.signs.cpu import choose_units, signs_floats
from winnow.kernels.simd.memory import read_f32, read_i64
from winnow.kernels.team import join, meet


@njit(cache=True, error_model="numpy")
def buffers(frame: int, half: bool) -> tuple[int, ...]:
    """Where lie: normed rows, projections, limited queries, what attention gave, outputs, gates, ups."""
    rows, width, mlp = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.WIDTH), read_i64(frame + 8 * t.MLP)
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    value = rows * (2 if half else 4)  # bytes of a value of every row
    head = value * read_i64(frame + 8 * t.HEAD_DIM)
    normed = read_i64(frame + 8 * t.BUFFER)
    qkv = normed + value * width
    limited = qkv + head * (q_heads + 2 * kv_heads)
    seen = limited + head * q_heads
    out = seen + head * q_heads
    gate = out + value * width
    return normed, qkv, limited, seen, out, gate, gate + value * mlp


@njit(cache=True, error_model="numpy")
def enter(frame: int, layer: int, norm: int, normed: int, half: bool) -> None:
    """Norm the rows for attention or for the MLP, where a norm stands before it."""
    rows, width = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.WIDTH)
    hidden, weight = read_i64(frame + 8 * t.HIDDEN), read_i64(layer + 8 * norm)
    row = width * (2 if half else 4)
    for r in range(rows if weight != 0 else 0):
        normalise(hidden + r * row, weight, width, layer, normed + r * row, half)


@njit(cache=True, error_model="numpy")
def entered(frame: int, layer: int, norm: int, normed: int) -> int:
    """Where the rows are that `enter` has made, or that go in as they are where no norm stands before."""
    return normed if read_i64(layer + 8 * norm) != 0 else read_i64(frame + 8 * t.HIDDEN)


@njit(cache=True, error_model="numpy")
def leave(frame: int, layer: int, norm: int, out: int, half: bool) -> None:
    """Add to the rows what attention or the MLP gave, normed first where a norm stands behind it."""
    rows, width = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.WIDTH)
    hidden, weight = read_i64(frame + 8 * t.HIDDEN), read_i64(layer + 8 * norm)
    row = width * (2 if half else 4)
    for r in range(rows):
        if weight != 0:
            normalise(out + r * row, weight, width, layer, out + r * row, half)
        add_share(hidden + r * row, out + r * row, width, read_f32(layer + 8 * t.SHARE), half)


@njit(cache=True, error_model="numpy", inline="always")
def product(x: int, rows: int, part: int, first: int, last: int, y: int, stride: int, room: int, half: bool) -> None:
    """y[r, o] = x[r] . weight[o] + bias[o] for outputs [first, last); `stride` bytes from one row of y to the next.

    part: the address of a product's places in the table; room: scratch of one thread.
    """
    if first >= last:
        return
    data, row_bytes, outs = read_i64(part + 8 * t.DATA), read_i64(part + 8 * t.ROW_BYTES), read_i64(part + 8 * t.OUTS)
    kind, bias = read_i64(part + 8 * t.KIND), read_i64(part + 8 * t.BIAS)
    if kind == t.DENSE:
        linear_part(x, data, bias, y, stride, room, rows, outs, first, last, row_bytes, half)
        return
    columns, group = read_i64(part + 8 * t.COLUMNS), read_i64(part + 8 * t.GROUP)
    minima = read_i64(part + 8 * t.MINIMA) != 0
    packed_part(x, data, bias, y, stride, room, rows, first, last, columns, row_bytes, group, kind, minima, half)
    if read_i64(part + 8 * t.RANK) != 0:
        adapt(x, rows, part, first, last, y, stride, room, half)


@njit(cache=True, error_model="numpy", inline="always")
def products(frame: int, x: int, part: int, count: int, thread: int, y: int, half: bool) -> None:
    """This thread's share of `count` products of x, whose outputs stand side by side in y."""
    rows, threads = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.THREADS)
    room = read_i64(frame + 8 * t.SCRATCH) + thread * read_i64(frame + 8 * t.SCRATCH_BYTES)
    size, total, start = 2 if half else 4, 0, 0
    for index in range(count):
        total += read_i64(part + 8 * (t.PART * index + t.OUTS))
    first, last = total * thread // threads, total * (thread + 1) // threads
    for index in range(count):
        mine = part + 8 * t.PART * index
        outs = read_i64(mine + 8 * t.OUTS)
        product(
            x, rows, mine, max(first - start, 0), min(last - start, outs), y + size * start, size * total, room, half
        )
        start += outs


@njit(cache=True, error_model="numpy", inline="always")
def gated(frame: int, layer: int, x: int, thread: int, gate: int, up: int, half: bool) -> None:
    """This thread's share of what goes into the MLP's last product."""
    rows, threads, mlp = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.THREADS), read_i64(frame + 8 * t.MLP)
    room = read_i64(frame + 8 * t.SCRATCH) + thread * read_i64(frame + 8 * t.SCRATCH_BYTES)
    stride = mlp * (2 if half else 4)
    first, last = mlp // 16 * thread // threads * 16, mlp // 16 * (thread + 1) // threads * 16
    for index in range(2):
        part, y = layer + 8 * (t.GATE + t.PART * index), up if index else gate
        product(x, rows, part, first, last, y, stride, room, half)
    for r in range(rows):
        gate_with(gate + r * stride, up + r * stride, first, last, read_i64(layer + 8 * t.ACTIVATION), half)


@njit(cache=True, error_model="numpy")
def place_rows(frame: int, layer: int, index: int, qkv: int, limited: int, half: bool) -> None:
    """Rotate the queries and keys of the rows, in place, and put their units where they belong.

    qkv: [rows, q_heads + 2 * kv_heads, head_dim]; limited: [rows, q_heads, head_dim], queries rotated another way.
    """
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, live = read_i64(frame + 8 * t.HEAD_DIM), read_i64(frame + 8 * t.LIVE)
    wide = head_dim * (2 if half else 4)
    for r in range(live):
        row, other = qkv + r * (q_heads + 2 * kv_heads) * wide, limited + r * q_heads * wide
        place = read_i64(frame + 8 * t.PLACES) + 8 * t.PLACE * (index * live + r)
        rotate_heads(layer, place, row, other, q_heads, kv_heads, head_dim, read_i64(frame + 8 * t.SCRATCH), half)
        stride = read_i64(place + 8 * t.STRIDE)
        for head in range(kv_heads):
            key = row + (q_heads + head) * wide
            copy(key, read_i64(place + 8 * t.KEYS) + head * stride, wide)
            copy(key + kv_heads * wide, read_i64(place + 8 * t.VALUES) + head * stride, wide)


@njit(cache=True, error_model="numpy")
def normalise_heads(frame: int, layer: int, qkv: int, half: bool) -> None:
    """Norm queries and keys of the rows, each head by itself or all together, where the layer has such norms."""
    query_norm, key_norm = read_i64(layer + 8 * t.QUERY_NORM), read_i64(layer + 8 * t.KEY_NORM)
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, together = read_i64(frame + 8 * t.HEAD_DIM), read_i64(layer + 8 * t.ALL_HEADS) != 0
    wide = head_dim * (2 if half else 4)
    for r in range(read_i64(frame + 8 * t.LIVE) if query_norm != 0 else 0):
        row = qkv + r * (q_heads + 2 * kv_heads) * wide
        if together:
            normalise(row, query_norm, q_heads * head_dim, layer, row, half)
            normalise(row + q_heads * wide, key_norm, kv_heads * head_dim, layer, row + q_heads * wide, half)
            continue
        for head in range(q_heads + kv_heads):
            mine = row + head * wide
            normalise(mine, query_norm if head < q_heads else key_norm, head_dim, layer, mine, half)


@njit(cache=True, error_model="numpy")
def rotate_heads(
    layer: int, place: int, row: int, limited: int, q_heads: int, kv_heads: int, head_dim: int, room: int, half: bool
) -> None:
    """Rotate the queries and the keys of a row, and its queries into `limited` where they are needed another way."""
    cos, sin = read_i64(place + 8 * t.COS), read_i64(place + 8 * t.SIN)
    other_cos, other_sin = read_i64(place + 8 * t.LIMITED_COS), read_i64(place + 8 * t.LIMITED_SIN)
    wide, narrow = head_dim * (2 if half else 4), read_i64(layer + 8 * t.ROPE_HALF) != 0
    if cos == 0:
        return
    for head in range(q_heads + kv_heads):
        mine = row + head * wide
        if other_cos != 0 and head < q_heads:
            copy(mine, limited + head * wide, wide)
            rotate(limited + head * wide, other_cos, other_sin, head_dim, room, narrow, half)
        rotate(mine, cos, sin, head_dim, room, narrow, half)


@njit(cache=True, error_model="numpy", inline="always")
def choose(frame: int, index: int, thread: int, qkv: int, half: bool) -> None:
    """Let the rows' own queries choose what this thread's share of KV heads reads."""
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, threads = read_i64(frame + 8 * t.HEAD_DIM), read_i64(frame + 8 * t.THREADS)
    readers, group, wide = read_i64(frame + 8 * t.LIVE) * kv_heads, q_heads // kv_heads, head_dim * (2 if half else 4)
    room = read_i64(frame + 8 * t.SCRATCH) + thread * read_i64(frame + 8 * t.SCRATCH_BYTES)
    for reader in range(thread, readers, threads):
        mine = read_i64(frame + 8 * t.CHOICES) + 8 * t.CHOICE * (index * readers + reader)
        asked, count = read_i64(mine + 8 * t.ASKED), read_i64(mine + 8 * t.COUNT)
        page, chosen = read_i64(mine + 8 * t.PAGE), read_i64(mine + 8 * t.CHOSEN)
        query = qkv + wide * (reader // kv_heads * (q_heads + 2 * kv_heads) + reader % kv_heads * group)
        if page != 0:
            choose_pages(
                query, read_i64(mine + 8 * t.LEAST), read_i64(mine + 8 * t.GREATEST), group, head_dim, asked, page,
                count, chosen, room, half,
            )  # fmt: skip
        elif asked != 0:
            choose_units(
                query, read_i64(mine + 8 * t.CODES), read_i64(mine + 8 * t.LENGTHS), read_i64(mine + 8 * t.CENTRE),
                read_i64(mine + 8 * t.TURN), group, head_dim, read_i64(mine + 8 * t.SKIPPED), asked, count, chosen,
                room, half,
            )  # fmt: skip


@njit(cache=True, error_model="numpy")
def number_below(index: int, count: int, bound: int) -> int:
    """How many of `count` ascending int64 at `index` are below a bound."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if read_i64(index + 8 * middle) < bound:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, error_model="numpy", inline="always")
def attend(frame: int, layer: int, index: int, thread: int, qkv: int, limited: int, half: bool) -> None:
    """Attention of this thread's share of the runs of units."""
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, threads = read_i64(frame + 8 * t.HEAD_DIM), read_i64(frame + 8 * t.THREADS)
    work, work_bytes = read_i64(frame + 8 * t.WORK), read_i64(frame + 8 * t.WORK_BYTES)
    scale, softcap = read_f32(layer + 8 * t.SCALE), read_f32(layer + 8 * t.SOFTCAP)
    shares = read_i64(frame + 8 * t.SHARES) + 8 * (threads + 1) * index
    base, group, wide = read_i64(shares), q_heads // kv_heads, head_dim * (2 if half else 4)
    room = read_i64(frame + 8 * t.SCRATCH) + thread * read_i64(frame + 8 * t.SCRATCH_BYTES)
    for number in range(read_i64(shares + 8 * thread), read_i64(shares + 8 * (thread + 1))):
        run = read_i64(frame + 8 * t.RUNS) + 8 * t.RUN * number
        reader, mine = read_i64(run + 8 * t.READER), work + (number - base) * work_bytes
        r, first = reader // kv_heads, reader % kv_heads * group
        rows, order, next_row = read_i64(run + 8 * t.READERS), read_i64(run + 8 * t.ORDER), q_heads + 2 * kv_heads
        query = qkv + wide * (r * next_row + first)
        if read_i64(run + 8 * t.LIMITED) != 0:
            query, next_row = limited + wide * (r * q_heads + first), q_heads
        for i in range(rows):
            copy(query + wide * next_row * i, mine + wide * group * i, wide * group)
        units, numbers, start = read_i64(run + 8 * t.UNITS), read_i64(run + 8 * t.INDEX), 0
        if numbers != 0:
            start = number_below(numbers, units, read_i64(run + 8 * t.LOW))
            units = number_below(numbers, units, read_i64(run + 8 * t.HIGH))
        kept, kept_row = read_i64(run + 8 * t.KEPT), read_i64(run + 8 * t.KEPT_ROW)
        form = read_i64(run + 8 * t.RUN_FORM)
        if form != 0:
            attend_codes(
                form, reader % kv_heads, read_i64(run + 8 * t.FIRST), start, units, head_dim, rows * group, scale,
                softcap, half, mine, kept, kept_row, numbers, room,
            )  # fmt: skip
            continue
        attend_run(
            read_i64(run + 8 * t.RUN_KEYS), read_i64(run + 8 * t.RUN_VALUES), start, units, head_dim, rows, group,
            order, order, 0, scale, softcap, order != 0, half, mine, kept, kept_row, numbers, room,
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def merge(frame: int, index: int, seen: int, half: bool) -> None:
    """What attention gave for every row and head, [live, q_heads, head_dim], of all the runs that it read."""
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, live = read_i64(frame + 8 * t.HEAD_DIM), read_i64(frame + 8 * t.LIVE)
    work, work_bytes = read_i64(frame + 8 * t.WORK), read_i64(frame + 8 * t.WORK_BYTES)
    heads = read_i64(frame + 8 * t.HEADS) + 8 * (live * kv_heads + 1) * index
    base, group, wide = read_i64(heads), q_heads // kv_heads, head_dim * (2 if half else 4)
    for reader in range(live * kv_heads):
        number, stop = read_i64(heads + 8 * reader), read_i64(heads + 8 * (reader + 1))
        if number == stop:  # it reads with one before
            continue
        vectors = group * read_i64(read_i64(frame + 8 * t.RUNS) + 8 * (t.RUN * number + t.READERS))
        for vector in range(vectors):
            place = (reader // kv_heads + vector // group) * q_heads + reader % kv_heads * group + vector % group
            merge_runs(
                work + (number - base) * work_bytes, work_bytes, stop - number, vector, vectors, head_dim, ZERO, False,
                seen + wide * place, half,
            )  # fmt: skip


@njit(cache=True, error_model="numpy")
def before_attention(frame: int, layer: int, first: int, size: int, half: bool) -> None:
    """The projections of the rows. first: the number of this thread, of the `size` that share the work."""
    threads, team = read_i64(frame + 8 * t.THREADS), read_i64(frame + 8 * t.TEAM)
    normed, qkv, _, _, _, _, _ = buffers(frame, half)
    if first == 0:
        enter(frame, layer, t.BEFORE_ATTENTION, normed, half)
    meet(team, size)
    for thread in range(first, threads, size):
        products(frame, entered(frame, layer, t.BEFORE_ATTENTION, normed), layer + 8 * t.QUERY, 3, thread, qkv, half)
    meet(team, size)
    if first == 0:
        normalise_heads(frame, layer, qkv, half)


@njit(cache=True, error_model="numpy")
def attention(frame: int, layer: int, index: int, first: int, size: int, half: bool) -> None:
    """Attention of the rows over the runs that they read, their own units included, which are put in place."""
    threads, team = read_i64(frame + 8 * t.THREADS), read_i64(frame + 8 * t.TEAM)
    _, qkv, limited, seen, _, _, _ = buffers(frame, half)
    if first == 0:
        place_rows(frame, layer, index, qkv, limited, half)
    meet(team, size)
    if read_i64(frame + 8 * t.CHOICES) != 0:
        for thread in range(first, threads, size):
            choose(frame, index, thread, qkv, half)
        meet(team, size)
    for thread in range(first, threads, size):
        attend(frame, layer, index, thread, qkv, limited, half)
    meet(team, size)
    if first == 0:
        merge(frame, index, seen, half)


@njit(cache=True, error_model="numpy")
def after_attention(frame: int, layer: int, first: int, size: int, half: bool) -> None:
    """What attention gave goes through its last product and the MLP, and is added to the rows."""
    threads, team = read_i64(frame + 8 * t.THREADS), read_i64(frame + 8 * t.TEAM)
    normed, _, _, seen, out, gate, up = buffers(frame, half)
    meet(team, size)
    for thread in range(first, threads, size):
        products(frame, seen, layer + 8 * t.OUTPUT, 1, thread, out, half)
    meet(team, size)
    if first == 0:
        leave(frame, layer, t.AFTER_ATTENTION, out, half)
        enter(frame, layer, t.BEFORE_MLP, normed, half)
    meet(team, size)
    for thread in range(first, threads, size):
        gated(frame, layer, entered(frame, layer, t.BEFORE_MLP, normed), thread, gate, up, half)
    meet(team, size)
    for thread in range(first, threads, size):
        products(frame, gate, layer + 8 * t.DOWN, 1, thread, out, half)
    meet(team, size)
    if first == 0:
        leave(frame, layer, t.AFTER_MLP, out, half)


KINDS = "iib"


@kernel(KINDS)
def layers_kernel(member: int, members: int, place: int) -> None:
    """Take the rows of a frame (see `tables.py`) through its layers, or through the parts of them that it names.

    One team of threads for all, begun once; a part is what one of them does.
    """
    frame, layers, half = arguments(place, KINDS)
    stages, size = read_i64(frame + 8 * t.STAGES), join(read_i64(frame + 8 * t.TEAM), member, members)
    first = member if size > 1 else 0
    for index in range(layers if size > 0 else 0):
        layer = read_i64(frame + 8 * t.LAYERS) + 8 * t.LAYER * index
        if stages & t.BEFORE:
            before_attention(frame, layer, first, size, half)
        if stages & t.ATTENTION:
            attention(frame, layer, index, first, size, half)
        if stages & t.AFTER:
            after_attention(frame, layer, first, size, half)


def room_bytes(rows: int, widest: int, vectors: int, head_dim: int, asked: int) -> int:
    """Scratch of one thread: for products of `rows` rows with at most `widest` columns or outputs, for a piece of units
    that lie apart or are held as codes, read by `vectors` queries, for choosing with as many among `asked` pages or
    units."""
    products = OUT + 4 * rows * (2 * widest + 16)
    choosing = max(room_floats(vectors, head_dim, asked), signs_floats(vectors, head_dim, asked))
    return max(products, 4 * codes_floats(vectors, head_dim), 4 * choosing)
