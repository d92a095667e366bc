"""The version: pyproject.toml reads it from here, and so do modules that store it."""

__version__ = "0.1.0"
