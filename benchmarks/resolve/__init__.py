"""What `perfgate resolve` says of releases of SGLang and of seeded trees."""
