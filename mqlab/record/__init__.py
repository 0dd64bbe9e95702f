"""What a run leaves behind: files that plots and tables are drawn from."""
