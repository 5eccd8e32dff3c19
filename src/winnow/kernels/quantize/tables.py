"""What kernels are told of a slab of codes, as a row of int64: addresses and strides in bytes.

Of the keys, then of the values: codes and scales of the first KV head, the bytes from one head to the next, from one
row of scales to the next (a group of units, or of channels), from scales to minima, and whether groups are of units.
Then what both share; HADAMARD: whether codes are of keys that are transformed, as queries then have to be.
"""

CODES, CODES_STRIDE, SCALES, SCALES_STRIDE, ROW, MINIMA, BY_CHANNEL = range(7)
SIDE = 7
BITS, GROUP, ROW_BYTES, HADAMARD = range(2 * SIDE, 2 * SIDE + 4)
FORM = 2 * SIDE + 4
