"""The sub-commands of `sdp-facade` that need no Tango."""
