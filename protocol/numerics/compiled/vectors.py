"""Arithmetic on sixteen values at once, spelt out for numba's compiler.

From a loop over one block LLVM makes code that first asks whether its arrays overlap, and that uses
half of the registers where those of full width are thought to slow the clock. What takes most of
the time is therefore written down in vectors. They are LLVM's own, without anything of one
processor: where registers are shorter, several of them do. The one exception is `tabled`.

A function that is `spelt` is called from a kernel, gets what a `Row` or a `Vector` is made of, and
runs once, while the kernel is compiled: what it does with them is what the kernel will do. Nothing
is reordered or contracted: each operation rounds on its own, as in a kernel's twin.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from protocol.numerics.compiled.compiling import extending, nb

try:
    from llvmlite import binding, ir
except ImportError:  # It comes with numba.
    binding = ir = None

LANES: Final = 16
"""Values in a vector; four times as many are half a block."""

LINE_BYTES: Final = 64
"""Of the caches of every CPU that we know of; with another one hints are only less good."""

_EXPONENT: Final = 0x7F80_0000


@cache
def _has_lookup() -> bool:
    """Whether one instruction of the CPU that is compiled for picks sixteen values of sixteen."""
    if nb.config.CPU_FEATURES is not None:
        return "+avx512f" in nb.config.CPU_FEATURES.split(",")
    if nb.config.CPU_NAME is not None:
        return False
    return bool(binding.get_host_cpu_features().get("avx512f"))


def spelt(returns: str | None) -> Callable[[Callable[..., Any]], Any]:
    """What makes a function usable in kernels that writes down what they are to do.

    returns: the numba type of what it gives back, a scalar `Vector`; None where it gives nothing.
    In a call from a kernel each array, or tuple of arrays, is followed by the index of the element
    at which its `Row` begins. Other numbers arrive as scalar vectors, None as None.
    """

    def made(write: Callable[..., Any]) -> Any:
        if ir is None or nb is None:
            return write

        def typed(_typing: Any, *given: Any) -> Any:
            result = nb.types.void if returns is None else getattr(nb.types, returns)

            def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                found = write(*_arguments(context, builder, signature.args, values))
                return context.get_dummy_value() if returns is None else found.value

            return result(*given), emit

        # numba asks for the names of what is given, and cannot do with any number of it.
        typed.__signature__ = _signature(write)  # type: ignore[attr-defined]
        return extending.intrinsic(typed)

    return made


def _signature(write: Callable[..., Any]) -> inspect.Signature:
    """That of calls from a kernel: after each array there is an index."""
    names = ["typing"]
    for name, parameter in inspect.signature(write).parameters.items():
        names += [name, f"{name}_at"] if "Row" in str(parameter.annotation) else [name]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def _arguments(context: Any, builder: Any, kinds: Any, values: Any) -> Iterator[Any]:
    """Rows and vectors of what a kernel gives."""
    pairs = iter(zip(kinds, values, strict=True))
    for kind, value in pairs:
        if isinstance(kind, nb.types.Array):
            yield _row(context, builder, kind, value, next(pairs)[1])
        elif isinstance(kind, nb.types.UniTuple):
            start, members = next(pairs)[1], range(kind.count)
            parts = [builder.extract_value(value, at) for at in members]
            yield [_row(context, builder, kind.dtype, part, start) for part in parts]
        elif isinstance(kind, nb.types.NoneType):
            next(pairs)
            yield None
        else:
            yield Vector(builder, value)


def _row(context: Any, builder: Any, kind: Any, value: Any, start: Any) -> Row:
    array = context.make_array(kind)(context, builder, value)
    is_signed = getattr(kind.dtype, "signed", True)
    width, is_float = kind.dtype.bitwidth // 8, isinstance(kind.dtype, nb.types.Float)
    return Row(builder, builder.gep(array.data, [start]), width, is_signed, is_float)


def load_line(builder: Any, place: Any) -> None:
    """Asks for a line of the caches to be loaded; place: a pointer, to any memory."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    hint = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    # To read it, into the nearest cache, data and not code.
    builder.call(hint, [builder.bitcast(place, byte), word(0), word(3), word(1)])


class Row:
    """Elements of an array from some place on."""

    def __init__(
        self, builder: Any, begin: Any, width: int, is_signed: bool, is_float: bool
    ) -> None:
        self._builder, self._begin, self._width = builder, begin, width
        self.is_signed, self.is_float = is_signed, is_float

    def _place(self, at: int) -> Any:
        return self._builder.gep(self._begin, [ir.IntType(64)(at)])

    def load(self, at: int) -> Vector:
        """Sixteen elements from that one on."""
        place = self._place(at)
        whole = ir.VectorType(place.type.pointee, LANES).as_pointer()
        where = self._builder.bitcast(place, whole)
        return Vector(self._builder, self._builder.load(where, align=self._width))

    def store(self, at: int, values: Vector) -> None:
        """Puts sixteen elements there."""
        where = self._builder.bitcast(self._place(at), values.value.type.as_pointer())
        self._builder.store(values.value, where, align=self._width)

    def stream(self, at: int, values: Vector) -> None:
        """The same past the caches, which are not asked for what is there; at a border of 64 bytes.

        Other threads see it after the kernel's `settle`.
        """
        where = self._builder.bitcast(self._place(at), values.value.type.as_pointer())
        stored = self._builder.store(
            values.value, where, align=values.value.type.count * self._width
        )
        once = self._builder.module.add_metadata([ir.IntType(32)(1)])
        stored.set_metadata("nontemporal", once)

    def lines(self, numel: int) -> range:
        """Of so many elements, those with which lines of the caches begin."""
        return range(0, numel, LINE_BYTES // self._width)

    def hint(self, at: int) -> None:
        """Begins to load the line of the caches with that element, which may be beyond the end."""
        load_line(self._builder, self._place(at))

    def one(self, at: int) -> Vector:
        """One element, as a scalar."""
        return Vector(self._builder, self._builder.load(self._place(at)))

    def constant(self, value: int) -> Vector:
        """An integer of 64 bits that is known now, a scalar."""
        return Vector(self._builder, ir.IntType(64)(value))

    def zeros(self) -> Vector:
        """Sixteen of +0, of the kind of the elements."""
        kind = ir.VectorType(self._begin.type.pointee, LANES)
        return Vector(self._builder, ir.Constant(kind, [0] * LANES))


class Vector:
    """Values that a kernel will have in a register; or one value, a scalar."""

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder, self.value = builder, value

    @property
    def _size(self) -> int:
        return int(getattr(self.value.type, "count", 1))

    @property
    def _is_float(self) -> bool:
        kind = getattr(self.value.type, "element", self.value.type)
        return not isinstance(kind, ir.IntType)

    def _new(self, value: Any) -> Vector:
        return Vector(self._builder, value)

    def _like(self, other: Vector | float) -> Any:
        """A number as as many values of this kind."""
        if isinstance(other, Vector):
            return other.value
        kind = self.value.type
        if self._size == 1:
            return ir.Constant(kind, other)
        return ir.Constant(kind, [ir.Constant(kind.element, other)] * self._size)

    def _kind(self, element: Any) -> Any:
        return element if self._size == 1 else ir.VectorType(element, self._size)

    def __add__(self, other: Vector | float) -> Vector:
        add = self._builder.fadd if self._is_float else self._builder.add
        return self._new(add(self.value, self._like(other)))

    def __sub__(self, other: Vector | float) -> Vector:
        take = self._builder.fsub if self._is_float else self._builder.sub
        return self._new(take(self.value, self._like(other)))

    def __mul__(self, other: Vector | float) -> Vector:
        times = self._builder.fmul if self._is_float else self._builder.mul
        return self._new(times(self.value, self._like(other)))

    def __and__(self, other: Vector | int) -> Vector:
        return self._new(self._builder.and_(self.value, self._like(other)))

    def __or__(self, other: Vector | int) -> Vector:
        return self._new(self._builder.or_(self.value, self._like(other)))

    def __xor__(self, other: Vector | int) -> Vector:
        return self._new(self._builder.xor(self.value, self._like(other)))

    def __lshift__(self, bits: int) -> Vector:
        return self._new(self._builder.shl(self.value, self._like(bits)))

    def __rshift__(self, bits: int) -> Vector:
        """Zeros come in at the top."""
        return self._new(self._builder.lshr(self.value, self._like(bits)))

    def __gt__(self, other: Vector | int) -> Any:
        """Of signed integers: what `when` and `choose` take."""
        return self._builder.icmp_signed(">", self.value, self._like(other))

    def is_set(self) -> Any:
        """Of integers, and of booleans: whether they are not 0."""
        return self._builder.icmp_unsigned("!=", self.value, self._like(0))

    def choose(self, condition: Any, other: Vector | float) -> Vector:
        """This where the condition holds, the other elsewhere."""
        return self._new(self._builder.select(condition, self.value, self._like(other)))

    def most(self, other: Vector, *, is_signed: bool = True) -> Vector:
        """The larger of two integers."""
        compare = self._builder.icmp_signed if is_signed else self._builder.icmp_unsigned
        return self.choose(compare(">", self.value, other.value), other)

    def least(self, other: int) -> Vector:
        """The smaller of two signed integers."""
        limit = self._like(other)
        return self.choose(self._builder.icmp_signed("<", self.value, limit), other)

    def wide(self, bits: int = 32) -> Vector:
        """Of unsigned integers: as wider ones."""
        return self._new(self._builder.zext(self.value, self._kind(ir.IntType(bits))))

    def wide_signed(self, bits: int = 32) -> Vector:
        """Of signed integers: as wider ones."""
        return self._new(self._builder.sext(self.value, self._kind(ir.IntType(bits))))

    def narrow(self, bits: int) -> Vector:
        """Of integers: their lowest bits."""
        return self._new(self._builder.trunc(self.value, self._kind(ir.IntType(bits))))

    def floats(self) -> Vector:
        """Of signed integers: as float32."""
        return self._new(self._builder.sitofp(self.value, self._kind(ir.FloatType())))

    def doubles(self) -> Vector:
        """Of float32: as float64."""
        return self._new(self._builder.fpext(self.value, self._kind(ir.DoubleType())))

    def bits(self) -> Vector:
        """Of float32: their bits."""
        return self._new(self._builder.bitcast(self.value, self._kind(ir.IntType(32))))

    def flushed(self) -> Vector:
        """Of float32: +0 for subnormals and for -0, decided on the bits."""
        return self.choose((self.bits() & _EXPONENT).is_set(), 0.0)

    def spread(self) -> Vector:
        """Of a scalar: sixteen of it."""
        nothing = ir.Constant(ir.VectorType(self.value.type, LANES), ir.Undefined)
        first = self._builder.insert_element(nothing, self.value, ir.IntType(32)(0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self._new(self._builder.shuffle_vector(first, nothing, mask))

    def folded(self, join: Callable[[Vector, Vector], Vector]) -> Vector:
        """One value of all: the second half joined to the first, until one is left."""
        left, size = self, self._size
        while size > 1:
            size //= 2
            halves = [left._part(begin, size) for begin in (0, size)]
            left = join(*halves)
        return self._new(self._builder.extract_element(left.value, ir.IntType(32)(0)))

    def _part(self, begin: int, size: int) -> Vector:
        places = list(range(begin, begin + size))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), size), places)
        nothing = ir.Constant(self.value.type, ir.Undefined)
        return self._new(self._builder.shuffle_vector(self.value, nothing, mask))


def tabled(of: Callable[[Vector], Vector], near: Vector) -> Callable[[Vector], Vector]:
    """A function of the lowest four bits of 32-bit integers, as float32: `of`, which is given those
    bits and nothing above them. Where the CPU can look up values, `of` is asked for all sixteen
    once, and what it said is looked up.
    """
    if not _has_lookup():
        return lambda given: of(given & (LANES - 1))
    builder, word = near._builder, ir.IntType(32)
    whole = ir.VectorType(word, LANES)
    table = of(Vector(builder, ir.Constant(whole, [word(at) for at in range(LANES)]))).value
    kind = ir.FunctionType(table.type, [table.type, whole])
    name = "llvm.x86.avx512.permvar.sf.512"
    look_up = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return lambda given: Vector(builder, builder.call(look_up, [table, given.value]))


class Cell:
    """A vector that changes on the way, also where `when` decides."""

    def __init__(self, first: Vector) -> None:
        self._builder = first._builder
        with self._builder.goto_entry_block():
            self._place = self._builder.alloca(first.value.type)
        self.set(first)

    def get(self) -> Vector:
        return Vector(self._builder, self._builder.load(self._place))

    def set(self, now: Vector) -> None:
        self._builder.store(now.value, self._place)


@contextmanager
def when(condition: Any, near: Vector) -> Iterator[None]:
    """What is written down in here is done only where a scalar condition holds."""
    with near._builder.if_then(condition):
        yield


@spelt(None)
def settle(near: Vector) -> None:
    """What was streamed is seen by others before anything that comes after; near: any number."""
    near._builder.fence("seq_cst")


def zero_double(near: Vector) -> Vector:
    """A scalar float64 of 0."""
    return Vector(near._builder, ir.Constant(ir.DoubleType(), 0.0))


def total_of_squares(parts: list[Vector]) -> Vector:
    """Of float32: the sum of their squares in float64, halves added to halves until one is left."""
    return total_of_products(parts, parts)


def total_of_products(parts: list[Vector], others: list[Vector]) -> Vector:
    """Of float32: the sum of products in float64, halves added to halves until one is left."""
    sums = [one.doubles() * other.doubles() for one, other in zip(parts, others, strict=True)]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[at] + sums[half + at] for at in range(half)]
    return sums[0].folded(Vector.__add__)
