"""The types of methods' functions. Made by python -m experiments.methods_pages."""

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
    """Returns what a client of APFL does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        mixing_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
        mixing: apfl: where a client's alpha starts.
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
    """Returns what a client of Ditto does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
        pull: ditto, mr_mtl: weight lambda of a copy's pull to the shared model.
        local_only_epochs: Passes that move the local variables alone, before the others.
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
    """Returns what a client of FedAvg does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
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
    """Returns what a client of FedDyn does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
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
    """Returns what a client of FedEM does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        num_clusters: fed_em, ifca: how many models the server has.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        em_steps: fed_em: passes in which a client weighs the models.
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
    """Returns what a client of FedPer does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
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
    """Returns what a client of FedRecon does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        support_query_split: Support and query sets: alternate batches, halves, or both all the data.
        support_share: Share of the batches in the support set, to 1 %.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        growing_reconstruction: Round n, from 1, makes at most n of the --reconstruction_epochs; evaluation all.
        joint_training: Move local variables in the update phase too.
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
    """Returns what a client of FedRep does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
        local_only_epochs: Passes that move the local variables alone, before the others.
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
    """Returns the one phase of FedPerC.

    All embeddings have the `client_optimizer`, such as Adam. There are `local_epochs` over what a
    client has drawn for the round, and at most `max_local_steps`, K of the paper; `proximal` is the
    weight of FedProx' term, and `weighting` is `uniform` as in the paper.

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
    """Returns what a client of FURL does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
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
    """Returns what a client of IFCA does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        num_clusters: fed_em, ifca: how many models the server has.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        mean_over: ifca: a model moves by the mean over those who chose it, or over the whole cohort.
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
    """Returns what a client of LG-FedAvg does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
    """

def local_only(
    *,
    client_optimizer: AnyOptimizer,
    local_epochs: int = 5,
    max_local_steps: int | None = None,
) -> Algorithm:
    """Returns what a client of Local training does before it predicts.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
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
    """Returns what a client of MR-MTL does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
        pull: ditto, mr_mtl: weight lambda of a copy's pull to the shared model.
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
    """Returns what a client of Per-FedAvg does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        adaptation_optimizer: An optimizer of TFF's or of Keras'.
        support_query_split: Support and query sets: alternate batches, halves, or both all the data.
        support_share: Share of the batches in the support set, to 1 %.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
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
    """Returns what a client of pFedMe does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        inner_optimizer: An optimizer of TFF's or of Keras'.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        envelope: pfedme: weight lambda of theta's pull to w.
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
    """Returns what a client of PFedRec does in a round.

    Args:
        reconstruction_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_optimizer: An optimizer of TFF's or of Keras'; None where another one does its work.
        reconstruction: How local variables are built: by gradient steps, or by exact least squares.
        reconstruction_epochs: Passes over the support set.
        max_reconstruction_steps: Bound on their steps; 0: none.
        ridge_l2: Penalty of ridge reconstruction.
        ridge_bias_l2: The same for scalar local variables. [default: --ridge_l2]
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
        max_local_update_norm: Bound on what a round changes in a client's local variables; 0: none.
        local_only_epochs: Passes that move the local variables alone, before the others.
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
    """Returns what a client of Reptile does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
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
    """Returns what a client of SCAFFOLD does in a round.

    Args:
        client_optimizer: An optimizer of TFF's or of Keras'.
        local_epochs: Passes over a client's examples in a round.
        max_local_steps: Bound on their steps; 0: none.
        weighting: Clients' weights: examples, or equal.
        max_update_norm: Bound on a client's update; 0: none.
    """
