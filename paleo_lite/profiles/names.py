"""Names of kernels: what is left of a C++ name when templates and parameters go, and the class of work that it tells.

A CUDA kernel is a free function (``__global__`` is not a member function), so its name is namespaces and one identifier
before the first list of template arguments or parameters. That much of an Itanium-mangled name is read here in one
pass. General demanglers expand substitutions, which a hostile name makes exponentially long, and they refuse the
truncated names that profilers write.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import msgspec

from .classes import is_tensor_core, label_of

LONGEST = 4096
"""Characters of a name that are looked at; the rest of a longer one is arguments of arguments."""


class KernelName(msgspec.Struct, frozen=True):
    """What a kernel's name tells.

    Attributes
    ----------
    name : str
        The normalised name.
    label : str
        Its class, one of `paleo_lite.profiles.classes.CLASSES`.
    raw : str
        As the profiler prints it.
    """

    name: str
    label: str
    raw: str

    @property
    def tensor_core(self) -> bool | None:
        """Whether it runs on tensor cores; None where the name does not say."""
        return is_tensor_core(self.name, self.raw[:LONGEST])

    @property
    def family(self) -> str:
        """The class, without the algorithm where it is a convolution."""
        return "convolution" if self.label.startswith("convolution") else self.label


_ANONYMOUS = re.compile(
    r"_GLOBAL__N_\w*::|\(anonymous(?: namespace)?\)::|<?unnamed>::|\{anonymous\}::|`anonymous namespace'::"
)
_UNNAMED = ("nonymous", "unnamed", "_GLOBAL__N_")  # looked for first, which takes a tenth of the pattern's time
_CORRELATION = re.compile(r"\s*\[\d+\]$")  # nvprof's GPU trace puts the launch's number behind the name
_STATIC = re.compile(r"^__nv_static_\d+__\w*?_(?=_Z)")  # nvcc's prefix of a kernel with internal linkage
_TENSILE = re.compile(r"(Cijk_[A-Z][a-z]+_[A-Z][a-z]+_[A-Z0-9]+)\w*?_(MT\d+(?:x\d+)+)(?:_(MI\d+(?:x\d+)+))?")
_TENSILE_WHOLE = 64  # characters of one of Tensile's names that are not shortened
_COPY = re.compile(
    r"\[?(?:cuda )?(memcpy|memset)(?:[\s,]+([HDPA]to[HDPA]|(?:Host|Device|Peer)-to-(?:Host|Device|Peer)))?"
    r"(?:\s*\(.*|\])?",
    re.IGNORECASE,
)
_BY_CATEGORY = ("memcpy", "memset", "communication")
_WRAPPER = re.compile(r"(?:^|::)(?:Kernel2?|device_kernel)$")
_IDENTIFIER = re.compile(r"(?:typename |class |struct )?([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)")
_RETURN_TYPE = re.compile(r"(?:std::)?enable_if<")
_TYPE_END = re.compile(r">::type\s+(?=[A-Za-z_])")
_SOURCE_NAME = re.compile(r"L?(\d{1,4})")
_NESTED = re.compile(r"N[rVK]*[RO]?")


@lru_cache(maxsize=2**19)  # a profile of generated kernels has as many names, and asks for each several times
def classify(raw: str, category: str = "kernel") -> KernelName:
    """The normalised name, class and unit of a kernel.

    Parameters
    ----------
    raw : str
        The name as a profiler prints it: plain, demangled or mangled, whole or truncated.
    category : str
        What the profiler says of the row (`paleo_lite.profiles.table.SCHEMA`): copies, fills and communication are
        known by it, whatever they are called. ``convolution`` of a kernel whose operation is one: its class is that of
        a convolution, also where its name is that of a plain matrix product.
    """
    name = normalise(raw)
    label = category if category in _BY_CATEGORY else label_of(name, raw[:LONGEST])
    if category == "convolution" and not label.startswith("convolution"):
        label = "convolution_gemm" if label == "gemm" else "convolution_besides"
    return KernelName(name, label, raw)


def normalise(raw: str) -> str:
    """A name without return type, templates, parameters and anonymous namespaces.

    The kernel of a CUTLASS wrapper (``cutlass::Kernel<cutlass_80_tensorop_...>``) is called by its argument. The names
    of Tensile (AMD's GEMMs) are shortened, distinct names to distinct ones.

    Examples
    --------
    >>> normalise("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)")
    'at::native::reduce_kernel'
    >>> normalise("_ZN2at6native13reduce_kernelILi512ELi1EfEEvT1_")
    'at::native::reduce_kernel'
    """
    text = raw[:LONGEST].strip()
    if text.endswith("]"):
        text = _CORRELATION.sub("", text)
    if text.startswith("__nv_static_"):
        text = _STATIC.sub("", text)
    if text.startswith("_Z"):
        return "::".join(_mangled_parts(text)) or text
    copy = _COPY.fullmatch(text) if text[:1] in "[cCmM" else None
    if copy:
        way = (copy[2] or "").replace("Host", "H").replace("Device", "D").replace("Peer", "P").replace("-", "")
        return f"{copy[1].lower()} {way}".rstrip()
    if [word for word in _UNNAMED if word in text]:
        text = _ANONYMOUS.sub("", text)
    text = text.removeprefix("void ")
    if _RETURN_TYPE.match(text) and (end_of_type := _TYPE_END.search(text)):
        text = text[end_of_type.end() :]
    end = min([position for position in (text.find("<"), text.find("(")) if position > 0], default=len(text))
    name = text[:end].strip()
    if name.lower().endswith(("kernel", "kernel2")) and _WRAPPER.search(name) and text[end : end + 1] == "<":
        inner = _IDENTIFIER.match(text, end + 1)
        if inner and "cutlass_" in inner[1]:
            return inner[1]
    return _shortened(name) or text


def _shortened(name: str) -> str:
    """One of Tensile's names without most of its parameters, which take hundreds of letters.

    What is left: layouts, types, macro tile and instruction; what is left out tells a hash, so that they stay distinct.
    """
    told = _TENSILE.match(name) if len(name) > _TENSILE_WHOLE else None
    if told is None:
        return name
    rest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return "_".join([*filter(None, told.groups()), rest])


def _mangled_parts(text: str) -> list[str]:
    """Namespaces and function of an Itanium-mangled name: its <nested-name> or <source-name>, per the C++ ABI."""
    nested = _NESTED.match(text, 2)
    position = nested.end() if nested else 2
    identifiers: list[str] = []
    if text.startswith("St", position):
        identifiers.append("std")
        position += 2
    while number := _SOURCE_NAME.match(text, position):
        position = number.end() + int(number[1])
        identifier = text[number.end() : position]
        if not identifier.startswith("_GLOBAL__N_"):
            identifiers.append(identifier)
        if nested is None:
            break
    return identifiers
