"""One translator per wire format. Each turns a body into messages and sampling, a completion into its own answer."""
