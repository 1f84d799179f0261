"""What the tests break things with: a proxy, a pooler, processes; and how they look at the server."""
