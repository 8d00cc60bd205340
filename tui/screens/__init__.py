"""Dialogs and pages that lie over the views."""
