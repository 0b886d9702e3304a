"""Next word prediction: Stack Overflow or any table of texts (FedRecon, section 5)."""
