"""What a program of one's own needs, under one name: `from fedpersonal import api as fp`.

Call `fedpersonal.runtime.start()` before this import: it silences TensorFlow, which comes with it.
"""

from fedpersonal.algorithm import Algorithm, GradientPhase, RidgePhase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_per import fed_per
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.algorithms.fed_rep import fed_rep
from fedpersonal.algorithms.furl import furl
from fedpersonal.algorithms.lg_fed_avg import lg_fed_avg
from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.data.client_table import clients_from_table
from fedpersonal.data.splits import split_clients, split_examples
from fedpersonal.errors import UserError
from fedpersonal.evaluation.evaluate import (
    ClientResults,
    build_evaluation,
    evaluate_clients,
    split_support_query,
)
from fedpersonal.local_state.rounds import Rounds, read_kept
from fedpersonal.local_state.store import LocalStateStore
from fedpersonal.model.metrics import Metric
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.boundary import LocalVariableError, check_boundary
from fedpersonal.process.execution import Execution
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Cohort, make_cohort
from fedpersonal.simulation.loop import run_rounds
from fedpersonal.simulation.run_folder import RunFolder
from fedpersonal.simulation.sampling import ClientSampler
from fedpersonal.simulation.store_checkpoints import StoreCheckpoints

__all__ = [
    "Algorithm",
    "ClientDataset",
    "ClientResults",
    "ClientSampler",
    "Cohort",
    "Execution",
    "GradientPhase",
    "LocalStateStore",
    "LocalVariableError",
    "Metric",
    "PartitionedModel",
    "RidgePhase",
    "Rounds",
    "RunFolder",
    "StoreCheckpoints",
    "UserError",
    "build_evaluation",
    "build_process",
    "check_boundary",
    "clients_from_table",
    "evaluate_clients",
    "fed_avg",
    "fed_per",
    "fed_recon",
    "fed_rep",
    "furl",
    "lg_fed_avg",
    "make_cohort",
    "read_kept",
    "run_rounds",
    "split_clients",
    "split_examples",
    "split_support_query",
]
