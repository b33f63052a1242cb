"""The start and the end of a process's communication with the others."""
