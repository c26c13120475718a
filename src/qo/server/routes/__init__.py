"""The wires that the server speaks, one folder each, and what it says about itself."""
