"""The Tango side of any flow: base class, mapping of values, device server, and standby.

It imports `facade.kernel` and no flow. Begin with `devices.kernel.base`, from which all device classes derive; then
`devices.kernel.mapping` turns readings into Tango's values, and `devices.kernel.server` runs the process.
"""
