"""
The real engine, core and stores on a virtual clock, in a world that one number decides.

    python -m tests.simulation SEED [--sqlite] [--trace]

    script    what will happen: backends and their outages, callers, disturbances
    agents    what a program prints and how it ends, by the condition of its provider
    programs  running attempts; they live on when the daemon dies
    daemon    one life of the daemon: the engine, its store, and how it is killed
    callers   who asks, reports, cancels, marks, reconfigures
    laws      what has to hold, whatever happens
    run       a script played to its end

A failing seed fails again, always: time jumps, threads are run in place, and every choice comes
from the seed.
"""
