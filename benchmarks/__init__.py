"""How fast leadership moves, measured on a real server with real processes: ``python -m benchmarks.failover``."""
