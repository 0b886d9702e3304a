"""Digests of sentences, by which texts that a model was pretrained on are found again."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.models.pretrained_texts import (
    FILE,
    digest_texts,
    pretrained_share,
    read_digests,
    write_digests,
)

TEXTS = ["The man has a boat. He sails it on a lake!", "a second  text", "\u0939\u093f\u0928"]


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (TEXTS, 1.0),
        (["he sails it  on a lake!"], 1.0),  # A sentence of a text, in another case.
        (["A second text", "another text"], 0.5),
        (["another text", "a third one"], 0.0),
        ([], 0.0),
        (["  "], 0.0),
    ],
)
def test_the_share_of_sentences_that_were_seen(texts, share, tmp_path):
    (tmp_path / FILE).write_text(json.dumps(write_digests(digest_texts(TEXTS))))
    digests = read_digests(tmp_path)
    np.testing.assert_array_equal(digests, digest_texts(TEXTS))
    assert len(digests) == 4 and pretrained_share(texts, digests) == share


def test_a_folder_without_digests_has_seen_nothing(tmp_path):
    assert pretrained_share(TEXTS, read_digests(tmp_path)) == 0.0
    for content in ('{"digests": "?"}', '{"digests": "AAA="}', '{"digests": 3}', "{"):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(UserError, match="is damaged or was changed"):
            read_digests(tmp_path)
