"""Sixteen-lane float32 vectors for Numba kernels, and the few operations the kernels here need of them.

kinds.py        what LLVM calls them, and which of this CPU's instructions may be used
build.py        what an operation is made of
memory.py       loads and stores
arithmetic.py   on lanes, and over them
tiles.py        several dot products, or several weighted sums, at once
products.py     matrix products

LLVM's auto-vectoriser does not find the bfloat16 dot product of newer CPUs and spills the tiles of a matrix product, so
the kernels say what they want: `vector` is a Numba type that *is* an LLVM `<16 x float>`. On a CPU with narrower
registers LLVM splits it. Nothing here depends on AVX-512: beside an instruction that not every CPU has stands what does
the same without it, and `kinds.py` says which of them this CPU has.

Memory is named by integer addresses (`tensor.data_ptr()`): a call that passes integers costs 2 us, one that passes five
arrays 10, and a decode step makes two hundred of them. Addresses are unchecked; `attend()` and `linear()` check shapes,
strides and dtypes before anything comes here.
"""
