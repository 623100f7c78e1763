"""
The law of core: no I/O, no clock, no randomness, no logging, no async.

Time comes in as `now`, chance as `luck` (a float in [0, 1)), facts as events.
"""
