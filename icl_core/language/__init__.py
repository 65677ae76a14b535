"""BERT-type encoders: split at a layer, cached prefix, rotated hidden states, text-pair data, MRPC and natural shift.

Importing this package loads nothing heavy; its modules import ``transformers`` only inside the functions that need it.
"""
