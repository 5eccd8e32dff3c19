"""Few rows through several layers in one call, over the weights as they are held.

program.py  what a layer is made of, and tables of it
cpu.py      Numba: the layers, one after the other

The definition is the layers themselves, driven one by one: the same operations in the same order, rounded to the dtype
of activations where modules hand tensors on.
"""
