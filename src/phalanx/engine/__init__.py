"""Being a rank. Needs torch; reached only as a child process."""
