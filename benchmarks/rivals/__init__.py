"""The same FedRecon round on MovieLens, written by other means."""
