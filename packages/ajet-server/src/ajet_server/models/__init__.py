"""Model folders: checked without torch, loaded with it."""
