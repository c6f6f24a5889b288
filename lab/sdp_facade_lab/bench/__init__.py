"""`sdp-facade bench`: the facade beside the raw limits of the same machine, in the same run.

Absolute figures belong to one machine and one moment. Both sides of a comparison are measured alternately, each in its
own process, on the same records. The result is the median of the ratios. A bar that is not reached is no error.
"""
