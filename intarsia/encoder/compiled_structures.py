"""The structures that the compiled function of CPU passes reads: `kernels/cpu/given.h` has the same."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class Linear(Structure):
    _fields_ = (
        ("weight", c_void_p), ("bias", c_void_p), ("scales", c_void_p), ("sums", c_void_p),
        ("inputs", c_int32), ("outputs", c_int32),
    )  # fmt: skip


class Layer(Structure):
    _fields_ = (
        ("qkv", Linear), ("dense", Linear), ("up", Linear), ("down", Linear),
        ("gain", c_void_p * 2), ("bias", c_void_p * 2),
    )  # fmt: skip


class SiteTensors(Structure):
    _fields_ = (
        ("down", c_void_p), ("down_bias", c_void_p), ("up", c_void_p), ("up_bias", c_void_p),
        ("gain", c_void_p), ("bias", c_void_p), ("stride", c_int64),
        ("size", c_int32), ("activation", c_int32), ("reads", c_int32), ("restarts", c_int32),
        ("mean", c_int32), ("norm_mean", c_int32), ("fused", c_int32), ("weight", c_float), ("rest", c_float),
    )  # fmt: skip


class FusionTensors(Structure):
    _fields_ = (
        ("query", c_void_p), ("query_bias", c_void_p), ("key", c_void_p), ("value", c_void_p),
        ("stride", c_int64), ("reads", c_int32),
    )  # fmt: skip


class LinearTensors(Structure):
    _fields_ = (
        ("a", c_void_p), ("b", c_void_p), ("bias", c_void_p), ("gain", c_void_p), ("input_gain", c_void_p),
        ("stride", c_int64), ("gain_stride", c_int64), ("rank", c_int32), ("magnitudes", c_int32),
        ("scale", c_float), ("weight", c_float),
    )  # fmt: skip


class PrefixTensors(Structure):
    _fields_ = (("keys", c_void_p), ("values", c_void_p), ("stride", c_int64), ("size", c_int32))


class Use(Structure):
    _fields_ = (("table", c_int32), ("slot", c_int32))


class Owner(Structure):
    _fields_ = (("first", c_int32), ("last", c_int32), ("first_use", c_int32), ("last_use", c_int32))


class CompiledPass(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)), ("sites", POINTER(SiteTensors)), ("fusions", POINTER(FusionTensors)),
        ("changes", POINTER(LinearTensors)), ("prefixes", POINTER(PrefixTensors)), ("uses", POINTER(Use)),
        ("owners", POINTER(Owner)), ("offsets", POINTER(c_int32)), ("relative", c_void_p), ("states", c_void_p),
        ("work", c_void_p), ("layer_count", c_int32), ("first", c_int32), ("last", c_int32),
        ("width", c_int32), ("inner", c_int32), ("heads", c_int32), ("owner_count", c_int32), ("segments", c_int32),
        ("middle", c_int32), ("distances", c_int32), ("activation", c_int32), ("int8", c_int32), ("threads", c_int32),
        ("scales_up", c_int32), ("scale", c_float), ("eps", c_float),
    )  # fmt: skip
