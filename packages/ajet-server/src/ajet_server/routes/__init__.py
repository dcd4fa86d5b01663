"""HTTP: thin functions between the wire models and the components."""
