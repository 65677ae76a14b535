"""One file per figure or group of figures: parameters, a result table with provenance, and its picture."""
