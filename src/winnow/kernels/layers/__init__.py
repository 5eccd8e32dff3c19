"""Few rows through several layers in one call, over the weights as they are held.

tables.py    what the kernel is told of layers and rows
rows.py      Numba: norm, sum, rotation, activation of a row
low_rank.py  Numba: what an adapter adds to a product
cpu.py       Numba: the layers, one after the other

The definition is the layers themselves, driven one by one: the same operations in the same order, rounded to the dtype
of activations where modules hand tensors on.
"""
