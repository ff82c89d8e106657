"""The simulated world: a store, clocks and a network that fail, processes, and the model that the table is compared with.

Begin with `world`.
"""
