"""A tape without a GPU that remembers as little as a CUDA graph does: operations and the memory they were given.

Whatever Python decided while they were recorded (numbers, shapes, which gradients there were) stays as it was.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def tensors(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def asks_the_device(func, args):
    """Whether a GPU would have to answer before Python can go on."""
    asked = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
    chosen = func is torch.ops.aten.index.Tensor and any(part.dtype == torch.bool for part in tensors(args[1]))
    return func in asked or chosen


class Recording(TorchDispatchMode):
    """The operations of a block, done once and then undone."""

    def __init__(self):
        super().__init__()
        self.done, self._before = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if asks_the_device(func, args):
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        for tensor in tensors([given[name] for name in written if name in given]):
            self._before.append((tensor, tensor.clone()))
        found = func(*args, **kwargs)
        self.done.append((func, args, kwargs, tensors(found)))
        return found

    @torch.no_grad()
    def undo(self):
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()

    @torch.no_grad()
    def again(self):
        for func, args, kwargs, found in self.done:
            for there, now in zip(found, tensors(func(*args, **kwargs)), strict=True):
                if there.untyped_storage().data_ptr() != now.untyped_storage().data_ptr():
                    there.copy_(now)


class Frozen:
    """What `CudaTape` does, on a CPU."""

    def __init__(self):
        self.replayed = 0

    def once(self, work):
        return work()

    def record(self, work):
        chance, recording = torch.get_rng_state(), Recording()
        try:
            with recording:
                number = work()
        finally:
            recording.undo()
            torch.set_rng_state(chance)

        def replay():
            self.replayed += 1
            recording.again()
            return number.clone()

        return replay
