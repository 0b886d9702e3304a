"""The types of methods' functions. Made by python -m build_tools.methods_pages."""

from collections.abc import Mapping, Sequence
from typing import Literal

from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.optimizers import AnyOptimizer

def apfl(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    mixing_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
    mixing: float = 0.5,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns the phases of a APFL client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        mixing_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
        mixing: apfl: initial value of a client's alpha.
    """

def ditto(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
    pull: float = 1.0,
    local_only_epochs: int = 1,
) -> Algorithm:
    """Returns the phases of a Ditto client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
        pull: ditto, mr_mtl: weight lambda of a copy's pull towards the shared model.
        local_only_epochs: Passes that move only the local variables, before the global ones move.
    """

def fed_avg(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns the phases of a FedAvg client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
    """

def fed_dyn(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    feddyn_alpha: float = 0.1,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
) -> Algorithm:
    """Returns the phases of a FedDyn client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        feddyn_alpha: fed_dyn: weight alpha of the dynamic regulariser.
    """

def fed_em(
    *,
    client_optimizer: AnyOptimizer,
    num_clusters: int = 2,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    em_steps: int = 1,
) -> Algorithm:
    """Returns the phases of a FedEM client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        num_clusters: fed_em, ifca: number of models of the server.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        em_steps: fed_em: passes that estimate the models' weights.
    """

def fed_per(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
) -> Algorithm:
    """Returns the phases of a FedPer client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
    """

def fed_recon(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    support_query_split: Literal["skip", "aggregated", "shared"] = "skip",
    support_share: float = 0.5,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 1,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    growing_reconstruction: bool = False,
    joint_training: bool = False,
) -> Algorithm:
    """Returns the phases of a FedRecon client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        support_query_split: Support and query sets: alternate batches, halves, or all the data for both.
        support_share: Share of the batches in the support set, to 1 %.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        growing_reconstruction: Round n, counted from 1, makes at most n of the --reconstruction_epochs; evaluation makes all.
        joint_training: Also move local variables in the update phase.
    """

def fed_rep(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
    local_only_epochs: int = 1,
) -> Algorithm:
    """Returns the phases of a FedRep client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
        local_only_epochs: Passes that move only the local variables, before the global ones move.
    """

def fedperc(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 10,
    max_local_steps: int = 10,
    weighting: Literal["num_examples", "uniform"] = "uniform",
    max_update_norm: float | None = None,
    proximal: float = 1.0,
    layers: Sequence[str] | None = None,
) -> Algorithm:
    """Returns the algorithm of FedPerC, which has one phase.

    The `client_optimizer`, such as Adam, moves all embeddings. A round makes `local_epochs` passes
    over the examples that a client has sampled, and at most `max_local_steps` steps, K in the
    paper. `proximal` is the weight of FedProx' term, and `weighting` is `uniform` as in the paper.

    Args:
        layers: The layers that move, or None for all that are not frozen.
    """

def furl(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
) -> Algorithm:
    """Returns the phases of a FURL client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
    """

def ifca(
    *,
    client_optimizer: AnyOptimizer,
    num_clusters: int = 2,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    mean_over: Literal["cluster", "cohort"] = "cluster",
) -> Algorithm:
    """Returns the phases of a IFCA client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        num_clusters: fed_em, ifca: number of models of the server.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        mean_over: ifca: a model moves by the mean over the clients that chose it, or over the whole cohort.
    """

def lg_fed_avg(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
) -> Algorithm:
    """Returns the phases of a LG-FedAvg client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
    """

def local_only(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 5,
    max_local_steps: int | None = None,
) -> Algorithm:
    """Returns the phases of a Local training client before it predicts.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
    """

def mr_mtl(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
    pull: float = 1.0,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
) -> Algorithm:
    """Returns the phases of a MR-MTL client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
        pull: ditto, mr_mtl: weight lambda of a copy's pull towards the shared model.
    """

def per_fed_avg(
    *,
    client_optimizer: AnyOptimizer,
    adaptation_optimizer: AnyOptimizer,
    support_query_split: Literal["skip", "aggregated", "shared"] = "skip",
    support_share: float = 0.5,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns the phases of a Per-FedAvg client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        adaptation_optimizer: An optimizer of TFF or Keras.
        support_query_split: Support and query sets: alternate batches, halves, or all the data for both.
        support_share: Share of the batches in the support set, to 1 %.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
    """

def pfedme(
    *,
    client_optimizer: AnyOptimizer,
    inner_optimizer: AnyOptimizer,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    envelope: float = 15.0,
    inner_steps: int = 5,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns the phases of a pFedMe client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        inner_optimizer: An optimizer of TFF or Keras.
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        envelope: pfedme: weight lambda of theta's pull towards w.
        inner_steps: pfedme: steps K of theta on a batch.
    """

def pfedrec(
    *,
    client_optimizer: AnyOptimizer,
    reconstruction_optimizer: AnyOptimizer | None = None,
    local_optimizer: AnyOptimizer | None = None,
    reconstruction: Literal["gradient", "ridge"] = "gradient",
    reconstruction_epochs: int = 5,
    max_reconstruction_steps: int | None = None,
    ridge_l2: float = 10.0,
    ridge_bias_l2: float | None = None,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    max_local_update_norm: float | None = None,
    local_only_epochs: int = 1,
) -> Algorithm:
    """Returns the phases of a PFedRec client in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        client_optimizer: An optimizer of TFF or Keras.
        local_optimizer: An optimizer of TFF or Keras; None to fall back to another one.
        reconstruction: How local variables are rebuilt: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The penalty for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on a round's change of a client's local variables; 0: none.
        local_only_epochs: Passes that move only the local variables, before the global ones move.
    """

def reptile(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "uniform",
    max_update_norm: float | None = None,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
    proximal: float = 0.0,
) -> Algorithm:
    """Returns the phases of a Reptile client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
    """

def scaffold(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 1,
    max_local_steps: int | None = None,
    weighting: Literal["num_examples", "uniform"] = "num_examples",
    max_update_norm: float | None = None,
    optimizers: Mapping[str, AnyOptimizer] | None = None,
) -> Algorithm:
    """Returns the phases of a SCAFFOLD client in a round.

    Args:
        client_optimizer: An optimizer of TFF or Keras.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Weights of clients' updates: numbers of examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
    """
