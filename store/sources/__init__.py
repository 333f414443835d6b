"""Where traces come from, and what is said of their answers: a module or a folder for each."""
