"""Where traces and their labels come from: a module or a folder for each."""
