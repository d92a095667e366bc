"""The frozen base: loading, packed batches, and one forward whose tokens are owned by many slots."""
