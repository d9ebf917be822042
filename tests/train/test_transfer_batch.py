"""The transfer of a batch to a device."""

import numpy as np
import torch

from fixtures.tiny import SPECIAL
from headstart.data.datasets import LabelledDataset
from headstart.train.transfer_batch import to_device


def test_a_batch_that_stays_on_the_cpu_is_returned_unchanged():
    batch = LabelledDataset([np.array([4, 5])], [0], SPECIAL, context=8).batch([0])
    assert to_device(batch, torch.device("cpu")) is batch
    assert batch.cu_seqlens is None


def test_all_tensors_of_a_batch_are_transferred():
    batch = LabelledDataset([np.array([4, 5])], [0], SPECIAL, context=8).batch([0])
    moved = to_device(batch, torch.device("meta"))
    assert moved.tensors().keys() == batch.tensors().keys() == {"ids_BT", "targets", "lengths_B"}
    assert {tensor.device.type for tensor in moved.tensors().values()} == {"meta"}
