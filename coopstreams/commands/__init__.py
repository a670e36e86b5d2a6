"""The commands of `coopstreams`, one module each."""
