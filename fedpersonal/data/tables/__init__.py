"""Tables of text files, and of other places, read column by column."""
