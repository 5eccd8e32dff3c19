"""The commands, each a dataclass of its options that is called when they are filled; none loads torch before."""
