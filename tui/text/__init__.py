"""Statuses as lines of text: everything that `shoal status` prints and views share.
Not here: widgets (`tui.views`).
"""
