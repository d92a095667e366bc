"""The progress of training runs on a terminal, in a notebook, as lines of text, and in the log."""
