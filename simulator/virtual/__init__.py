"""Virtual time: the heap of events, the network model, how fast hosts are.
Not here: anything of Shoal beyond the machine interface.
"""
