"""skillserver: the tool server for people and agents who set up GPU clusters and train large models."""

__version__ = "0.1.0"
