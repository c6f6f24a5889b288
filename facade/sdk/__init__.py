"""What controllers and producers of SDP use, without PyTango.

Teams that write them in Python import its public names from `sdp_facade_sdk`. Begin with
``docs/sdp-developer.md``; in the code with `facade.sdk.controller.api`, and `facade.sdk.producer.heaps`.
"""
