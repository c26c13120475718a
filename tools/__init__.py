"""What writes files of this repository from others: `make generated`."""
