"""The commands of `coopstreams`, one in each module."""
