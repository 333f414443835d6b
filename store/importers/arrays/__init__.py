"""Files of arrays and tables of others, and the columns that they become."""
