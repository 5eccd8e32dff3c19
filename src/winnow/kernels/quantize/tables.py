"""What kernels are told of a slab of codes, as a row of int64: addresses and strides in bytes.

Of the keys, then of the values: codes and scales of the first KV head, the bytes from one head to the next, from one
row of scales to the next (a group of units, or of channels), from scales to minima, whether groups are of units, the
bits of a code, the bytes of a row of codes and the codes of a group. Then HADAMARD: whether codes are of keys that are
transformed, as queries then have to be.
"""

CODES, CODES_STRIDE, SCALES, SCALES_STRIDE, ROW, MINIMA, BY_CHANNEL, BITS, ROW_BYTES, GROUP = range(10)
SIDE = 10
HADAMARD = 2 * SIDE
FORM = 2 * SIDE + 1
