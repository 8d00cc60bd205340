"""The verbs `shoal sim` and `shoal replay`: what the simulator found, printed and plotted.
Not here: the simulator itself.
"""
