"""Whether `perfgate scheduler` finds changes of known size, and how often it calls equal arms different."""
