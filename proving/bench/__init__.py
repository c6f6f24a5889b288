"""`sdp-facade bench`: the facade beside the raw limits of the same machine, in the same run.

Absolute figures belong to one machine and one moment. So what is compared is measured alternately,
in processes of their own, on the same records, and what is stated is the median of the ratios.
A bar that is not reached is said plainly and never ends in an error.
"""
