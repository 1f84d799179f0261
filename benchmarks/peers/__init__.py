"""The same faults for pgelect and for other electors, side by side: `python -m benchmarks.failover --peers all`."""
