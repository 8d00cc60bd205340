"""The project's page: what strangers may see of a run, drawn and served by a process of its own.
Not here: what a status says (`protocol.status`), and the verdict (`tui.frames.verdict`).
"""
