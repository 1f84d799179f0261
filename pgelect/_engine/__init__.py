"""The election itself: pure rules and the task that applies them. Knows no database."""
