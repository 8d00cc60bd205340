"""What all tests have in common."""

from __future__ import annotations

import os

# Importing hivemind makes torch share memory through a helper process for the whole interpreter.
# Daemons never share tensors, but here their tests run in one process with those of the trainer.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")
