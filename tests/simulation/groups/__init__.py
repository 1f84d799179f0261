"""Groups in simulated time: members with their real runners share partitions on a fake server, and things go wrong."""
