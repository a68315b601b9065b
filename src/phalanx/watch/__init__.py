"""Shows runs, live and over, in a terminal and in a browser: reads run directories only."""
