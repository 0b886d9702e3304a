"""Options of language modelling of utterances."""

from __future__ import annotations

from fedpersonal.options import option
from fedpersonal.tasks.options import RunOptions
from fedpersonal.tasks.utterances.source import DialogueOptions


class UtteranceOptions(DialogueOptions):
    """The utterances, the base model, and how clients start."""

    evaluate_on: str = option(
        "seen",
        "Test on other utterances of the users who train, or on users who never took part.",
        choices=("seen", "unseen"),
        in_help=True,
    )
    text_length: int = option(32, "Tokens of an utterance.", at_least=4, at_most=10**6)
    too_long: str = option(
        "cut", "What becomes of utterances with more tokens.", choices=("cut", "error")
    )
    base_model: str | None = option(
        None,
        "A GPT-2 in HuggingFace's format, a folder or a name such as distilgpt2. [default: a small "
        "one is pretrained on what users who do not take part have written]",
    )
    base_model_revision: str | None = option(
        None, "The commit, tag or branch of a base model on the hub. [default: the newest]"
    )
    base_model_adapted: bool = option(
        False,
        "Train the pretrained base further on what users who do not take part have written in the "
        "same data, and on nothing else.",
    )
    base_model_dir: str = option(
        "results/base_models", "Keeps pretrained base models.", may_differ=True
    )
    unseen_start: str | None = option(
        None,
        "Where unseen users start: the noisy mean of what the others keep, the mean itself, or as "
        "everybody. [default: noisy_mean with embeddings, mean with larger parts]",
        choices=("noisy_mean", "mean", "fresh"),
    )
    noise_multiplier: float = option(0.1, "Noise of that mean, by --clip_norm.", at_least=0)
    clip_norm: float = option(1.0, "Bound on what one user adds to it.", at_least=1e-9)
    history_length: int = option(96, "Tokens that a generator reads.", at_least=1, at_most=10**6)
    prefix_length: int = option(
        1, "Vectors of FedPerC's embeddings and of other prefixes.", at_least=1, at_most=1000
    )
    lora_rank: int = option(8, "The rank of LoRA's factors.", at_least=1, at_most=1000)
    lora_matrices: str = option(
        "qkv",
        "The matrices of a block that LoRA adds to: the one that makes queries, keys and values, "
        "or all four.",
        choices=("qkv", "all"),
    )


class UtteranceRun(UtteranceOptions, RunOptions):
    """These options, and those of any run."""
