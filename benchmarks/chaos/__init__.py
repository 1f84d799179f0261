"""Chaos on the real thing: real servers, real processes, real signals, and a checker: ``python -m benchmarks.chaos``.

Three parts that know each other only by what is written down: replicas (``replica``, ``writer``, ``looking``) that each
keep a ``book``; a nemesis (``nemesis``, ``faults_*``) that breaks things on a ``cluster`` behind breakable ``links``
and keeps a book of its own; and a checker (``history``, ``belief``, ``allowance``, ``checks_*``, ``checker``) of pure
functions on these books, and on the ledger that the replicas wrote to, once all is over and they have been read
(``reading``). The library may be ``broken`` on purpose, to see that a run finds it.
"""
