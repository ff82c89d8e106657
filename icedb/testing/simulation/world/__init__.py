"""The simulated world: a store, clocks and a network that fail, processes, and the model of the table.

Begin with `world`.
"""
