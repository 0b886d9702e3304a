"""What a program of one's own needs, under one name: `from fedpersonal import api as fp`.

Call `fedpersonal.runtime.start()` before this import: it silences TensorFlow, which comes with it.
"""

from fedpersonal.algorithm import Algorithm, GradientPhase, RidgePhase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.boundary import LocalVariableError, check_boundary
from fedpersonal.datasets.client_dataset import ClientDataset
from fedpersonal.datasets.client_table import clients_from_table
from fedpersonal.datasets.splits import split_clients, split_examples
from fedpersonal.errors import UserError
from fedpersonal.evaluation import ClientResults, evaluate_clients, split_support_query
from fedpersonal.execution import client_datasets, pack_cohort
from fedpersonal.metrics import Metric
from fedpersonal.partition import PartitionedModel
from fedpersonal.simulation.loop import run_rounds
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.training import build_packed_process, build_per_client_process

__all__ = [
    "Algorithm",
    "ClientDataset",
    "ClientResults",
    "ClientSampler",
    "GradientPhase",
    "LocalVariableError",
    "Metric",
    "PartitionedModel",
    "RidgePhase",
    "RunFolder",
    "UserError",
    "build_packed_process",
    "build_per_client_process",
    "check_boundary",
    "client_datasets",
    "clients_from_table",
    "evaluate_clients",
    "fed_avg",
    "fed_recon",
    "pack_cohort",
    "run_rounds",
    "split_clients",
    "split_examples",
    "split_support_query",
]
