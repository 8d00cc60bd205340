"""Verbs about the model that comes out: write it down, publish it, talk to it. Not here: building
models (`node.trainer`) and what a syncer keeps on its disk (`syncer_node.storage`)."""
