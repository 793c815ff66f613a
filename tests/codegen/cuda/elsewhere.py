"""Arrays in the memory of a GPU, or, on the null device, on the processor, which say that they are."""

import ctypes
from typing import Any

import numpy as np
import torch

from tests.codegen.cuda.plans import NULL

ALIGNMENT = 64
"""Inputs that begin at such addresses are read where they lie."""


class Elsewhere:
    """An array that claims to lie in the memory of a GPU."""

    def __init__(self, data: np.ndarray[Any, Any], device: int) -> None:
        self._data, self._device = data, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self._device)

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self._data.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        # DLTensor: a pointer, then the device's kind and number.
        kind = ctypes.cast(pointer(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32))
        kind[0], kind[1] = self.__dlpack_device__()
        return capsule


def on_gpu(array: np.ndarray[Any, Any]) -> Any:
    """A copy of an array in the memory of the first GPU, as plans have it: aligned, channels last."""
    axes = (0, 2, 3, 1) if array.ndim == 4 else tuple(range(array.ndim))
    stored, back = array.transpose(axes), np.argsort(axes)
    if not NULL:
        there = torch.from_numpy(stored.copy()).cuda()
        torch.cuda.synchronize()  # for whatever stream reads it
        return there.permute(tuple(map(int, back)))
    room = np.zeros(array.nbytes + ALIGNMENT, np.uint8)
    aligned = room[-room.ctypes.data % ALIGNMENT :][: array.nbytes].view(array.dtype).reshape(stored.shape)
    aligned[...] = stored
    return Elsewhere(aligned.transpose(back), 0)
