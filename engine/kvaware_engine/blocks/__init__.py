"""Which worker holds which KV blocks: hashes, the tree of block groups, and what was routed where."""
