"""The frozen base: loading it, packing batches, and one forward pass in which each slot owns some of the tokens."""
