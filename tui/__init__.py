"""What people look at: `shoal status`, `shoal tui`. It imports `protocol` alone, so it starts fast.
Not here: asking daemons anything but their status, and changing anything.
"""

__project__ = "shoal"
