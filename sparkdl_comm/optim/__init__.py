"""The user's optimizer and learning-rate scheduler, over what a rank updates: ``optimizer.py`` makes it, over whole
parameters or over the stripes of a ``shard.py``; ``elementwise.py`` tries out whether it may update stripes;
``schedule.py`` steps the scheduler; ``optimization.py`` is what the user said of it all.
"""
