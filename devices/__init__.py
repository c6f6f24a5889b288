"""The Tango side of the SDP facade: thin device classes whose interface is derived from the ICD."""
