"""Many partitions on one session, shared by a fleet: the rules and the runner of a LeaderGroup. Knows no database."""
