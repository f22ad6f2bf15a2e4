"""The audit is tested on kernels with planted faults and on correct ones that were written independently."""
