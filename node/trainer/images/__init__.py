"""Images with a class each: found, checked, decoded once per host, and what a model says of them.
Not here: text (`node.trainer.text`), and data that training code brings (`node.trainer.own`).
"""
