"""The compositions, in the order of listings."""
# ruff: isort: skip_file

from intarsia.methods.stack import Stack as Stack
from intarsia.methods.fusion import Fuse as Fuse
from intarsia.methods.average import Average as Average
from intarsia.methods.split import Split as Split

ALL = (Stack, Fuse, Average, Split)

__all__ = ["Average", "Fuse", "Split", "Stack"]
