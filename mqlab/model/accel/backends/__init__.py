"""What a device decoder is computed with: one file a set of kernels."""
