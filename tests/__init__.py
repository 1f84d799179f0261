"""The tests of pgelect."""
