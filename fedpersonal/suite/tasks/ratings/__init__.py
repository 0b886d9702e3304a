"""Rating prediction: MovieLens or any table of ratings (FedRecon, section 5)."""
