"""One file per verb: what the command line and Python both call. Nothing here prints or parses."""
