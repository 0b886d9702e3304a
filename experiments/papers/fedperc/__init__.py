"""Tables of FedPerC (Silva et al., 2023)."""
