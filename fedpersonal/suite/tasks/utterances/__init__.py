"""Language modelling in contexts: TV shows, Reddit or any table of texts (FedPerC, section 4)."""
