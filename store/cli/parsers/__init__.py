"""The arguments, help and examples of the commands, a module for each module that runs them."""
