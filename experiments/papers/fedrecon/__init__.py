"""Tables and figures of Federated Reconstruction (Singhal et al., 2021)."""
