"""Whole elections in one thread and in simulated time: real runners, a fake server, a network and a nemesis.

One seed is one schedule, the same each time. `python -m benchmarks.simulate` runs many of them, `--seed S` shows one.
"""
