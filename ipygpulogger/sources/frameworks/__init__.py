"""The other frameworks, a file each, and the peaks that users read from a framework."""
