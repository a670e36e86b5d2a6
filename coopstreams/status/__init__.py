"""The status of an instance: health, its reasons, and the detection of stalls."""
