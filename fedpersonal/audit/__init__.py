"""The boundary, checked by experiment: what one client sends, and on what it depends."""
