"""The bank: a folder with one small file for each task version, over one frozen base."""
