"""The bank: what every task learned, one small file each, over one frozen base."""
