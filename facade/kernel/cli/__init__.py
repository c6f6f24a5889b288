"""The sub-commands of the program that need no Tango."""
