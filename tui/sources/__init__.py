"""Where frames come from: daemons of this machine, or a recording of them, written and read here.
Not here: what a frame holds (`tui.frames`).
"""
