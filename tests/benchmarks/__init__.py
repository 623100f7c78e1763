"""
Speed, measured as ratios of one run: `python -m tests.benchmarks [name…]`.

Never part of the tests: what a machine does beside it moves every figure. Each file measures one
thing and gives rows for one table, with the budget beside them.
"""
