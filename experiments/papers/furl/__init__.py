"""Tables and figures of Federated User Representation Learning (Bui et al., 2019)."""
