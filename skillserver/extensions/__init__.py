"""Protocol extensions: each in a file of its own, so that it can be replaced when the SDK ships one."""
