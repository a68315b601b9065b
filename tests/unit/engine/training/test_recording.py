"""What is written down of a batch: any change shows, by sample where there is a row for each."""

import numpy as np
import torch

from phalanx.engine.training.recording import hash_batch


def batch(**changes):
    x = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    return {"x": x, "y": [torch.tensor([1, 2, 3]), "name"], "mask": None, **changes}


def test_equal_batches_have_equal_hashes():
    assert hash_batch(batch(), 3) == hash_batch(batch(), 3)
    transposed = torch.arange(6, dtype=torch.float32).reshape(3, 2).T.contiguous().T
    assert hash_batch(batch(x=transposed), 3) == hash_batch(batch(), 3)


def test_any_change_shows():
    x = batch()["x"]
    nudged = x.clone()
    nudged[1, 1] = torch.nextafter(torch.tensor(3.0), torch.tensor(4.0))
    others = [
        batch(x=nudged),
        batch(x=x.double()),
        batch(x=x.reshape(2, 3)),
        batch(y=[torch.tensor([1, 2, 3]), "other"]),
        batch(y=(torch.tensor([1, 3, 2]), "name")),
        batch(mask=0),
        batch(z=np.zeros(2)),
        batch(x=x[:2]),
    ]
    hashes = {hash_batch(other, 3)[0] for other in [batch(), *others]}
    assert len(hashes) == 1 + len(others)


def test_rows_tell_which_sample_changed():
    x = batch()["x"].clone()
    x[1] += 1
    (_, before), (_, after) = hash_batch(batch(), 3), hash_batch(batch(x=x), 3)
    assert list(before) == ["x", "y.0"]
    assert [a == b for a, b in zip(before["x"], after["x"], strict=True)] == [True, False, True]
    assert before["y.0"] == after["y.0"]


def test_what_has_no_row_per_sample_is_hashed_whole():
    assert hash_batch(torch.ones(()), 3)[1] == {}
    assert hash_batch(torch.ones(2, 2), 3)[1] == {}
    assert hash_batch(torch.ones(3, 0), 3)[1] == {}
    assert list(hash_batch(torch.ones(3, dtype=torch.bfloat16), 3)[1]) == ["batch"]
    assert list(hash_batch([np.ones((3, 2))], 3)[1]) == ["0"]
