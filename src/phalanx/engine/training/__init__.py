"""One optimizer step, averaged weights, evaluation, recording."""
