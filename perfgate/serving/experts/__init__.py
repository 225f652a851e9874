"""Which experts the tokens of a served model choose."""
