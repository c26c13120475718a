"""The command `qo`: one file per command."""
