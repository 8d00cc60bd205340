"""Dialogs and pages that lie over the views.
Not here: the views (`tui.views`).
"""
