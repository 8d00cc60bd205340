"""Whom a leader lets in, and what it believes of them: claims, probes, conduct, progress.
Not here: how far a push points where others' do, which the merge finds (`protocol.numerics`).
"""
