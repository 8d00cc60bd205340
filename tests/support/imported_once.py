"""Imported by a fork server for its children, and by nobody else."""
