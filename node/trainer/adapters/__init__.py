"""Low-rank adapters beside a frozen base model: their table, their first weights, their network.
Not here: reading published files (`node.trainer.base_model`), and merging, which knows no adapters.
"""
