"""The simulated world: a store, clocks, a network with faults, processes, and the model of the table.

Begin with `world`.
"""
