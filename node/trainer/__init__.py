"""The child process that owns torch and the accelerator, and the link to it."""
