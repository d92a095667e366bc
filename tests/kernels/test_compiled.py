"""What Triton makes of the kernels for a Hopper GPU. It compiles without one; it cannot while it interprets."""

from __future__ import annotations

import os
import re

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels that are interpreted are not compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from intarsia.kernels import (  # noqa: E402
    LONGEST_PREFIX,
    adam,
    attention,
    bottleneck,
    fences,
    linear,
    long_attention,
    prefix_attention,
)

pytestmark = pytest.mark.triton

FLOATS = {"down_bias", "up_bias", "d_down", "d_down_bias", "d_up", "d_up_bias", "dw", "db", "b", "sums", "dtable",
          "apart", "d_keys", "d_values"}  # fmt: skip
INTEGERS = {"tile_slot", "slot_start", "slot_end", "seeds", "row_start", "row_length"}
NUMBERS = {"site", "limit", "middle", "token_stride", "grad_stride", "low_stride", "stride", "width", "size", "share",
           "slot_stride", "row_stride", "column_stride", "bias_stride", "inner", "outer"}  # fmt: skip
FRACTIONS = {"rescale", "scale"}
ODD = {"site", "limit", "middle"}  # of the numbers; the others are multiples of 16


def _type(name: str) -> str:
    if name in NUMBERS or name in FRACTIONS:
        return "i32" if name in NUMBERS else "fp32"
    return "*fp32" if name in FLOATS else "*i32" if name in INTEGERS else "*bf16"


def compiled(kernel, constants, warps, stages, odd=frozenset(ODD), capability=90, exact=False):
    """For the H200's kind; `odd`: numbers that Triton does not know to be multiples of 16."""
    constants = constants | {"EXACT": exact}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else _type(name) for name in names}
    if exact:
        signature = {name: "*fp32" if kind == "*bf16" else kind for name, kind in signature.items()}
    even = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in constants and name not in FRACTIONS and name not in odd
    }
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, even)
    return triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": warps, "num_stages": stages})


def kernels():
    for drop in (False, True):
        for units in (64, 256):
            block, _, warps, stages = bottleneck._tile(1000, 768, units, exact=False)
            own = {"DROP": drop, "KIND": 0, "ALIGN": 64, "M": units, "BLOCK": block}
            title = f"{units}{'-dropout' * drop}"
            yield f"forward-{title}", bottleneck._bottleneck_forward, own, warps, stages
            yield f"backward-{title}", bottleneck._bottleneck_backward, own | {"SKIP": True}, warps, stages
            for slots in (4, 32):
                chunk, block, warps, stages, launches = bottleneck._chunks(slots, units, exact=False)
                for which in launches:
                    own = {"WHICH": which, "DROP": drop, "CHUNK": chunk, "M": 64, "BLOCK": block}
                    yield f"weights-{which}-{slots}-{title}", bottleneck._bottleneck_weights, own, warps, stages
        long = {"RELATIVE": True, "DROP": drop, "ALIGN": 64, "ABOVE": 128, "B": 64, "D": 64, "WIDE": 64, "HEADS": 12}
        for name in ("_long_forward", "_long_queries", "_long_keys"):
            more = {} if name == "_long_forward" else {"TRAINED": False, "JOINED": True}
            yield f"{name[1:]}{'-dropout' * drop}", getattr(long_attention, name), long | more, 4, 3
        for align in (32, 64):
            prefix = {"DROP": drop, "T": align, "P": 16, "D": 64, "WIDE": 64, "HEADS": 12}
            for name in ("_prefix_forward", "_prefix_backward", "_prefix_weights"):
                warps, stages = (4, 1) if name == "_prefix_weights" else (align // 16, 3)
                yield f"{name[1:]}-{align}{'-dropout' * drop}", getattr(prefix_attention, name), prefix, warps, stages
    for align in (32, 64):
        blocks = {"HAS_BIAS": True, "ALIGN": align, "BO": 64, "BI": 64}
        for near in ("row_stride", "column_stride"):  # the matrix as it is, and turned
            yield f"product-{align}-{near}", linear._linear_product, blocks | {"BO": 128, near: 1}, 4, 3
        yield f"gradient-{align}", linear._linear_weights, blocks, 4, 3


KERNELS = {name: rest for name, *rest in kernels()}


@pytest.mark.parametrize("name", KERNELS)
def test_no_product_under_way_reads_registers_that_change(name):
    """A product whose left side is computed, not loaded, must have ended before the next turn of its loop: Triton
    before 3.7 lets that turn write to the registers it still reads (github.com/triton-lang/triton/issues/9433)."""
    lines = compiled(*KERNELS[name]).asm["ttgir"].splitlines()
    for i, line in enumerate(lines):
        if "warp_group_dot " in line and "opIdx = 0" in line and "isAsync = true" in line:
            waits = (int(m[1]) for later in lines[i:] if (m := re.search(r"dot_wait.*pendings = (\d+)", later)))
            assert next(waits) == 0, line.strip()


@pytest.mark.parametrize("name", KERNELS)
def test_no_copy_writes_to_what_a_product_under_way_reads(name):
    """A loop that copies ahead for products that it does not wait for needs a buffer for each of its stages; Triton
    has one less where something else reads the same block (github.com/triton-lang/triton/pull/7110)."""
    *rest, stages = KERNELS[name]
    lines = compiled(*rest, stages).asm["ttgir"].splitlines()
    from_where = {m[1]: m[2] for line in lines if (m := re.search(r"(%\w+) = ttg\.memdesc_trans (%\w+)", line))}
    buffers = {
        m[1]: int(m[2])
        for line in lines
        if (m := re.search(r"(%\w+) = ttg\.memdesc_index .*?memdesc<(\d+)x\d+x\d+x\w+, .* ->", line))
    }
    for i, line in enumerate(lines):
        product = re.search(r"warp_group_dot (%\w+), (%\w+),.*isAsync = true", line)
        waits = (int(m[1]) for later in lines[i:] if (m := re.search(r"dot_wait.*pendings = (\d+)", later)))
        if product and next(waits):
            for side in product.groups():
                assert buffers[from_where.get(side, side)] >= stages, line.strip()


@pytest.mark.parametrize("name", KERNELS)
def test_products_are_told_that_copies_have_ended(name):
    """Where a loop copies to shared memory while it computes; Triton before 3.7.1 does not see to it."""
    waited = False
    for line in compiled(*KERNELS[name]).asm["ptx"].splitlines():
        if "cp.async.wait_group" in line or "fence.proxy.async" in line:
            waited = "wait_group" in line
        assert not (waited and "wgmma.mma_async" in line), line.strip()


def test_other_programs_are_left_alone():
    code = "\twgmma.fence.sync.aligned;\n"
    theirs, ours = (code + f'.file 1 "/lib/{name}/kernels/linear.py"\n' for name in ("other", "intarsia"))
    assert fences.fenced(theirs) == theirs
    assert fences.fenced(ours) == f"\t{fences.FENCE}\n" + ours and fences.fenced(code).count("\n") == 2
    assert fences.needed("3.6.0") and fences.needed("3.7.0") and not fences.needed("3.7.1")


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith(("forward", "backward"))])
def test_adapters_are_loaded_wide(name):
    """As they are when a slot's row is known to be a multiple of 16 long; one number at a time otherwise."""
    kernel, constants, warps, stages = KERNELS[name]

    def loads(odd):
        return compiled(kernel, constants, warps, stages, odd).asm["ptx"].count("ld.global")

    assert loads(ODD) < 30 < loads(ODD | {"low_stride"})


def test_the_optimizer_loads_a_whole_model_wide():
    """Whatever its number of parameters, which no slot pads; the masked loads are those of its last block."""
    kernel = adam._adam
    constants = {"FACTORS": True, "LOW": True, "ALONE": True, "BLOCK": 2048}
    kinds = {"low": "*bf16", "gradient": "*bf16", "active": "*i32", "count": "i32"}
    kinds |= dict.fromkeys(("beta1", "beta2", "eps", "clip"), "fp32")
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "*fp32") for name in names}
    even = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, even)
    code = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 8}).asm["ptx"]
    each = 2048 // (8 * 32 * 4)  # loads of four float32
    assert code.count("ld.global.v4.b32") == 5 * each + 1  # the gradient's eight are one


SMALL_GPU = 89, 99 * 1024  # a GeForce or an L4: its kind, and the shared memory that a program may have there


def heavy_kernels():
    for exact, width in ((True, 64), (True, 32), (False, 128), (False, 64)):
        widest, block = attention.limits(exact, width)
        heads = {"RELATIVE": True, "DROP": True, "ALIGN": 64, "D": width, "WIDE": width, "HEADS": 12}
        held = heads | {"ABOVE": 0, "T": widest}
        title = f"{width}{'-exact' * exact}"
        joined = {"JOINED": True}
        yield f"forward-{title}", attention._attention_forward, held | joined, widest // 16, exact
        back = held | joined | {"TRAINED": False}
        yield f"backward-{title}", attention._attention_backward, back, widest // 16, exact
        long = heads | {"ABOVE": widest, "B": block}
        for name in ("_long_forward", "_long_queries", "_long_keys"):
            more = {} if name == "_long_forward" else {"TRAINED": False, "JOINED": True}
            yield f"{name[1:]}-{title}", getattr(long_attention, name), long | more, 4, exact
        prefix = {"DROP": True, "T": 64, "P": LONGEST_PREFIX, "D": width, "WIDE": width, "HEADS": 12}
        for name in ("_prefix_forward", "_prefix_backward", "_prefix_weights"):
            yield f"{name[1:]}-{title}", getattr(prefix_attention, name), prefix, 4, exact


HEAVY = {name: rest for name, *rest in heavy_kernels()}


@pytest.mark.parametrize("name", HEAVY)
def test_attention_fits_smaller_gpus(name):
    kernel, constants, warps, exact = HEAVY[name]
    capability, most = SMALL_GPU
    stages = 1 if kernel is prefix_attention._prefix_weights else 3
    assert compiled(kernel, constants, warps, stages, capability=capability, exact=exact).metadata.shared <= most


@pytest.mark.parametrize(("units", "exact"), [(64, False), (256, False), (64, True), (256, True)])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_adapters_fit_smaller_gpus(way, units, exact):
    block, _, warps, stages = bottleneck._tile(1000, 768, units, exact)
    constants = {"DROP": True, "KIND": 0, "ALIGN": 64, "M": units, "BLOCK": block}
    constants |= {"SKIP": True} if way == "backward" else {}
    capability, most = SMALL_GPU
    made = compiled(getattr(bottleneck, f"_bottleneck_{way}"), constants, warps, stages, ODD, capability, exact)
    assert made.metadata.shared <= most
