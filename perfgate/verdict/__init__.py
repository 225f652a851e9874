"""From a loaded session to a verdict, without files, processes or clocks."""
