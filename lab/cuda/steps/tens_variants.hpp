// Bits, activation rows, whether blocks of a cluster share the slices, groups of four warps, records of a stage, stages.
TENS(1, 32, 0, 4, 5, 4)
TENS(1, 32, 0, 5, 5, 4)
TENS(1, 32, 0, 3, 5, 4)
TENS(1, 32, 0, 2, 5, 4)
TENS(1, 32, 1, 5, 3, 4)
TENS(1, 32, 1, 4, 3, 4)
TENS(1, 32, 1, 3, 3, 4)
TENS(1, 32, 1, 4, 4, 3)
