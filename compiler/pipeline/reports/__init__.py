"""What is told of what was made: reports of builds, accounts of graphs, contents of folders."""
