"""Document classification: Reddit or any table of labelled texts (FURL, section 4)."""
