"""The pages of results, one module per page; `benchmarks/results.py` registers them."""
