"""When this machine may train, and how much: its owner's word, never the project's."""
