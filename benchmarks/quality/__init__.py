"""The protocol of docs/protocol.md: settings are chosen on one split of what is asked, and reported on the other."""
