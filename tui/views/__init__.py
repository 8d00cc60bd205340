"""The views of the terminal UI, one a file, each drawn from one `Scene`.
Not here: dialogs (`tui.screens`) and what frames mean (`tui.frames`).
"""
