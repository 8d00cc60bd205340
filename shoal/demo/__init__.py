"""`shoal demo`: a whole project on this machine, by the commands that anybody would type.
Not here: faults (`shoal.chaos`) and what the screen draws (`tui.views.demo`).
"""
