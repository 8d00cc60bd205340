"""What the screens know: one frame is everything known at one moment; history, rates, verdict.
Not here: anything that draws.
"""
