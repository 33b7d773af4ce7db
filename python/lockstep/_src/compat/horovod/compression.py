"""Compression of tensors on their way: `hvd.Compression`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_PUBLIC_MODULE = "horovod.tensorflow.compression"


class Compressor:
    """How a tensor travels; subclasses may be given as `compression`."""

    __module__ = _PUBLIC_MODULE

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor that travels, and what `decompress` needs to know of the original one."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the tensor that came in the form of the original one."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel unchanged."""

    __module__ = _PUBLIC_MODULE

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors travel in the type `wire`, others unchanged."""

    wire: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Returns the tensor in the type `wire`, and the type it had."""
        if not tensor.dtype.is_floating:
            return tensor, tensor.dtype
        return tf.cast(tensor, cls.wire), tensor.dtype

    @classmethod
    def decompress(cls, tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Returns the tensor in the type it had."""
        return tf.cast(tensor, ctx) if ctx.is_floating else tensor


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16: sums above 65504 become infinite."""

    __module__ = _PUBLIC_MODULE
    wire = tf.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16: the range of float32, with 8 bits of precision."""

    __module__ = _PUBLIC_MODULE
    wire = tf.bfloat16


class Compression:
    """Values of `compression`."""

    __module__ = _PUBLIC_MODULE

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
