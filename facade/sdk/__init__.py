"""What controllers and producers use; `sdp_facade_sdk` has the public names."""
