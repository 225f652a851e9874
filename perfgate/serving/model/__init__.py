"""The served model: what its config says, where it lies, and models that are made here."""
