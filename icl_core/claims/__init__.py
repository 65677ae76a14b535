"""The claim ledger: a record with checks for every numbered statement of both papers."""
