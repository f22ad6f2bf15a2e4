"""Files from strangers: what is sound comes back bit for bit, everything else is a FileError of one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from qkv.errors import DTypeError, FileError
from qkv.files import Tensor, read_tensors, write_tensors

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
SHAPES = ((), (0,), (3,), (2, 0, 4), (2, 3, 4))


def sample(dtype: str, shape: tuple[int, ...]) -> Tensor:
    bits = np.random.default_rng(len(shape)).integers(0, 2 if dtype == "bool" else 120, shape)
    return Tensor(bits.astype(np.uint16 if dtype == "bfloat16" else dtype), dtype)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].array.dtype, a[n].array.shape, a[n].array.tobytes())
        == (b[n].dtype, b[n].array.dtype, b[n].array.shape, b[n].array.tobytes())
        for n in a
    )


# What is sound


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip(tmp_path: Path, ending: str, dtype: str):
    tensors = {f"{dtype} {shape}/é": sample(dtype, shape) for shape in SHAPES}
    for name, tensor in tensors.items():
        path = tmp_path / f"one{ending}"
        kept = tensors if ending != ".npy" else {"one": tensor}
        if dtype == "bfloat16" and ending != ".safetensors":
            with pytest.raises(FileError, match=r"is bfloat16; write a \.safetensors file$"):
                write_tensors(path, kept)
            continue
        write_tensors(path, kept)
        assert same(read_tensors(path), {n: kept[n] for n in read_tensors(path)})
        if ending != ".npy":
            assert read_tensors(path).keys() == tensors.keys()
            assert same(read_tensors(path, names=[name]), {name: tensor})


def test_what_numpy_writes_is_read(tmp_path: Path):
    arrays = {
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "foreign": np.arange(5, dtype=np.dtype(np.float32).newbyteorder("S")),
        "strided": np.arange(10)[::-2],
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        back = read_tensors(tmp_path / "a.npz")
        assert list(back) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(back[name].array, array)
            assert back[name].array.dtype.isnative
    np.save(tmp_path / "b.npy", arrays["fortran"])
    np.testing.assert_array_equal(read_tensors(tmp_path / "b.npy")["b"].array, arrays["fortran"])


def test_what_is_written_numpy_and_safetensors_read(tmp_path: Path):
    from safetensors import safe_open

    tensors = {dtype: sample(dtype, (2, 3)) for dtype in DTYPES}
    write_tensors(tmp_path / "a.safetensors", tensors)
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        assert set(file.keys()) == set(tensors)
        for dtype in set(DTYPES) - {"bfloat16"}:
            np.testing.assert_array_equal(file.get_tensor(dtype), tensors[dtype].array)
        assert file.get_slice("bfloat16").get_dtype() == "BF16"
    del tensors["bfloat16"]
    write_tensors(tmp_path / "a.npz", tensors)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        for dtype in tensors:
            np.testing.assert_array_equal(file[dtype], tensors[dtype].array)


def test_bfloat16_of_ml_dtypes_travels_as_its_bits(tmp_path: Path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    write_tensors(tmp_path / "a.safetensors", {"a": np.array([1, -2, 3], ml_dtypes.bfloat16)})
    tensor = read_tensors(tmp_path / "a.safetensors")["a"]
    assert (tensor.dtype, tensor.array.dtype) == ("bfloat16", np.uint16)
    assert tensor.array.tolist() == [0x3F80, 0xC000, 0x4040]


def test_the_same_tensors_give_the_same_bytes_and_plain_permissions(tmp_path: Path):
    for ending in (".safetensors", ".npz"):
        first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
        for path in (first, second):
            write_tensors(path, {"x": np.ones(3), "y": np.zeros(2, np.float16)})
        assert first.read_bytes() == second.read_bytes()
        (tmp_path / "plain").touch()
        assert first.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.npz"
    write_tensors(path, {"x": np.ones(3)})
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(FileError, match=r"cannot be written \(No space left on device\); choose another place$"):
        write_tensors(path, {"x": np.zeros(3)})
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.npz"]


# Headers that lie


def npy(shape: object = (2, 3), descr: object = "<f4", data: bytes = bytes(24), fortran: object = False) -> bytes:
    return npy_text(repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode(), data)


def npy_text(text: bytes, data: bytes = bytes(24), version: tuple[int, int] = (1, 0)) -> bytes:
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + data


def npz(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def patched(archive: bytes, offset: int, value: bytes, *, entry: int = -1) -> bytes:
    """Overwrite a field of the last (or given) entry of the central directory."""
    starts = [i for i in range(len(archive)) if archive[i : i + 4] == b"PK\x01\x02"]
    start = starts[entry] + offset
    return archive[:start] + value + archive[start + len(value) :]


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[int], offsets: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


A4 = json.dumps({"a": entry([1], [0, 4])})[1:-1]
TWO = npz({"a.npy": npy(), "b.npy": npy()})
ZEROS = npz({"a.npy": npy((1000, 1000), data=bytes(4_000_000))}, zipfile.ZIP_DEFLATED)
DAMAGED = "the file is damaged or cut short, so copy or write it again"

NO_HEADER = "has no .npy header with descr, fortran_order and shape for 'a'"
NO_SHAPE = "declares 'a' with a shape that is not a tuple of sizes >= 0"
OBJECTS = "holds Python objects in 'a', a pickle that could run code; save it as numbers"
NO_NUMBERS = (
    "not booleans, integers or floats; pass names= without it, or save it as one of those (bfloat16: in .safetensors)"
)
NO_FLOAT8 = "which this package does not read; pass names= without it, or save it as a wider float"

# Each: file name, bytes, what the message says after naming the file ("; the file is damaged" may follow). Of what the
# safetensors library says nothing is quoted: its words are its own.
LIES: dict[str, tuple[str, bytes, str]] = {
    "npy magic": (
        "a.npy",
        b"PK\x03\x04 and so on",
        "should start 'a' with the magic string of .npy, not b'PK\\x03\\x04 a'",
    ),
    "npy empty": ("a.npy", b"", "should start 'a' with the magic string of .npy, not b''"),
    "npy version": (
        "a.npy",
        npy_text(b"{}", version=(3, 0)),
        "has 'a' in version 3.0 of .npy, not 1.0 or 2.0; save it with np.save",
    ),
    "npy long header": (
        "a.npy",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        "declares a header of 4,294,967,295 bytes for 'a', over 10,000",
    ),
    "npy cut header": ("a.npy", npy()[:40], "ends inside the header of 'a'"),
    "npy no literal": ("a.npy", npy_text(b"{'descr': open('x')}"), NO_HEADER),
    "npy deep literal": ("a.npy", npy_text(b"(" * 9000), NO_HEADER),
    "npy long integer": ("a.npy", npy_text(b"9" * 9000), NO_HEADER),
    "npy backslash": ("a.npy", npy_text(rb"{'\d': 1}"), NO_HEADER),
    "npy negative": ("a.npy", npy((-2, 3)), NO_SHAPE),
    "npy shape of True": ("a.npy", npy((True, 6)), NO_SHAPE),
    "npy shape list": ("a.npy", npy([2, 3]), NO_SHAPE),
    "npy order": ("a.npy", npy(fortran=1), "declares 'a' with a fortran_order that is not True or False"),
    "npy objects": ("a.npy", npy(descr="|O"), OBJECTS),
    "npy strings": ("a.npy", npy(descr="<U1"), "holds elements of type '<U1' in 'a', " + NO_NUMBERS),
    "npy fields": (
        "a.npy",
        npy(descr=[("x", "<f4")]),
        "holds elements of type \"[('x', '<f4')]\" in 'a', " + NO_NUMBERS,
    ),
    "npy too few": (
        "a.npy",
        npy(data=bytes(23)),
        "declares 'a' as (2, 3) of float32, which is 24 bytes, but has 23 for it",
    ),
    "npy too many": (
        "a.npy",
        npy(data=bytes(25)),
        "declares 'a' as (2, 3) of float32, which is 24 bytes, but has 25 for it",
    ),
    "npy huge": (
        "a.npy",
        npy((2**40, 2**40)),
        f"declares 'a' as ({2**40}, {2**40}) of float32, which is {2**82:,} bytes, but has 24 for it",
    ),
    "npy bool": (
        "a.npy",
        npy((2,), "|b1", b"\x01\x02"),
        "has bytes other than 0 and 1 in 'a', which it declares as bool",
    ),
    "npz magic": ("a.npz", npy(), "is not a sound .npz archive (File is not a zip file)"),
    "npz empty": ("a.npz", b"", "is not a sound .npz archive (File is not a zip file)"),
    "npz other member": (
        "a.npz",
        npz({"data.pkl": b"x"}),
        "has a member 'data.pkl' that is not a .npy array; write it with np.savez",
    ),
    "npz duplicate": ("a.npz", TWO.replace(b"b.npy", b"a.npy"), "has two arrays named 'a'"),
    "npz encrypted": ("a.npz", patched(TWO, 8, b"\x01"), "has its array 'b' encrypted; write it with np.savez"),
    "npz lzma": (
        "a.npz",
        npz({"a.npy": npy()}, zipfile.ZIP_LZMA),
        "compresses 'a' by a method other than deflate; write it with np.savez",
    ),
    "npz stored lie": (
        "a.npz",
        patched(TWO, 24, struct.pack("<I", 10**9)),
        f"declares 1,000,000,000 bytes for 'b', which the {len(npy())} bytes it has for it cannot hold",
    ),
    "npz overlap": ("a.npz", patched(TWO, 42, struct.pack("<I", 5)), "has the array 'b' overlap another one"),
    "npz beyond": ("a.npz", patched(TWO, 42, struct.pack("<I", len(TWO))), "has the array 'b' end beyond the archive"),
    "npz names differ": (
        "a.npz",
        patched(TWO, 46, b"c.npy"),
        "is not a sound .npz archive (File name in directory 'c.npy' and header b'b.npy' differ.)",
    ),
    "npz checksum": (
        "a.npz",
        patched(TWO, 16, b"\0\0\0\0"),
        "is not a sound .npz archive (Bad CRC-32 for file 'b.npy')",
    ),
    "npz member": (
        "a.npz",
        npz({"a.npy": npy((9,))}),
        "declares 'a' as (9,) of float32, which is 36 bytes, but has 24 for it",
    ),
    "npz objects": ("a.npz", npz({"a.npy": npy(descr="|O")}), OBJECTS),
    "safetensors empty": ("a.safetensors", b"", ""),
    "safetensors magic": ("a.safetensors", npy(), ""),
    "safetensors duplicate": (
        "a.safetensors",
        safetensors(f"{{{A4},{A4}}}".encode(), bytes(4)),
        "has two tensors named 'a'",
    ),
    "safetensors overlap": (
        "a.safetensors",
        safetensors({"a": entry([1], [0, 4]), "b": entry([1], [0, 4])}, bytes(4)),
        "",
    ),
    "safetensors gap": ("a.safetensors", safetensors({"a": entry([1], [4, 8])}, bytes(8)), ""),
    "safetensors more": ("a.safetensors", safetensors({"a": entry([1], [0, 4])}, bytes(5)), ""),
    "safetensors less": ("a.safetensors", safetensors({"a": entry([1], [0, 4])}, bytes(3)), ""),
    "safetensors negative": ("a.safetensors", safetensors({"a": entry([-1], [0, 4])}, bytes(4)), ""),
    "safetensors size": ("a.safetensors", safetensors({"a": entry([2], [0, 4])}, bytes(4)), ""),
    "safetensors overflow": ("a.safetensors", safetensors({"a": entry([2**40, 2**40], [0, 4])}, bytes(4)), ""),
    "safetensors no array": ("a.safetensors", safetensors({"a": entry([0, 2**40, 2**40], [0, 0])}), ""),
    "safetensors float8": (
        "a.safetensors",
        safetensors({"a": entry([4], [0, 4], "F8_E4M3")}, bytes(4)),
        "holds elements of type F8_E4M3 in 'a', " + NO_FLOAT8,
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_a_lie_is_one_sentence(tmp_path: Path, case: str):
    name, content, says = LIES[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read_tensors(path)
    message = str(caught.value)
    assert message.startswith(f"file {str(path)!r} ")
    assert message.endswith((says, f"{says}; {DAMAGED}"))
    assert says or DAMAGED in message
    assert "\n" not in message


def test_a_bomb_is_refused_before_memory_is_taken(tmp_path: Path):
    path = tmp_path / "bomb.npz"
    size = 4_000_000 + len(npy((1000, 1000), data=b""))
    path.write_bytes(ZEROS)
    with pytest.raises(FileError) as caught:
        read_tensors(path, max_bytes=1_000_000)
    assert str(caught.value) == (
        f"file {str(path)!r} needs {size:,} bytes for its tensors, more than max_bytes=1,000,000; "
        "raise max_bytes= if you trust the file, or pass names= to read some of them"
    )
    assert read_tensors(path)["a"].array.shape == (1000, 1000)
    # No deflated stream stands for so much: the default limit would let it pass.
    path.write_bytes(patched(ZEROS, 24, struct.pack("<I", 2**32 - 2)))
    with pytest.raises(FileError, match=r"declares 4,294,967,294 bytes for 'a', which the [\d,]+ bytes it has"):
        read_tensors(path)
    # More comes out than the directory says.
    inner = npy((10,), data=bytes(40))
    path.write_bytes(patched(ZEROS, 24, struct.pack("<I", len(inner))))
    with pytest.raises(FileError, match="the file is damaged or cut short"):
        read_tensors(path)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".safetensors"])
def test_the_limit_and_the_names(tmp_path: Path, ending: str):
    path = tmp_path / f"a{ending}"
    write_tensors(path, {"a": np.ones(100)} if ending == ".npy" else {"a": np.ones(100), "b": np.ones(2)})
    with pytest.raises(FileError, match=r"bytes for its tensors, more than max_bytes=500; raise max_bytes="):
        read_tensors(path, max_bytes=500)
    with pytest.raises(FileError, match=r"has no tensor 'c'; it has 'a'"):
        read_tensors(path, names=["c"])
    if ending != ".npy":
        assert list(read_tensors(path, names=["b"], max_bytes=500)) == ["b"]


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_what_is_not_asked_for_may_be_of_any_type(tmp_path: Path, ending: str):
    path = tmp_path / f"a{ending}"
    if ending == ".npz":
        np.savez(path, words=np.array(["x"]), q=np.ones(2))
    else:
        path.write_bytes(safetensors({"words": entry([4], [0, 4], "F8_E4M3"), "q": entry([1], [4, 8])}, bytes(8)))
    with pytest.raises(FileError, match="'words'"):
        read_tensors(path)
    assert list(read_tensors(path, names=["q"])) == ["q"]


def test_a_pickle_is_never_run(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return (Path(tmp_path / "ran").touch, ())

    np.savez(tmp_path / "a.npz", a=np.array([Trap()], dtype=object))
    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object))
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Trap()))
    for name in ("a.npz", "a.npy", "b.npy"):
        with pytest.raises(FileError):
            read_tensors(tmp_path / name)
    assert not (tmp_path / "ran").exists()


# Files that are no files


def test_what_cannot_be_opened(tmp_path: Path):
    with pytest.raises(FileError, match=r"cannot be read \(No such file or directory\); check the name"):
        read_tensors(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileError, match=r"is not a regular file; name a \.safetensors, \.npz or \.npy file$"):
        read_tensors(tmp_path / "folder.npz")
    with pytest.raises(FileError, match=r"may hold a pickle, which runs code when it is read; save it with"):
        read_tensors(tmp_path / "model.pt")
    with pytest.raises(FileError, match=r"ends in '\.csv', and tensors are kept in \.safetensors, \.npz or \.npy;"):
        read_tensors(tmp_path / "a.csv")
    with pytest.raises(FileError, match=r"cannot be written \(No such file or directory\)"):
        write_tensors(tmp_path / "none" / "a.npz", {"a": np.ones(1)})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(FileError, match="is not a regular file"):
        read_tensors(tmp_path / "pipe.npy")


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_tensors(tmp_path / "a.safetensors", {"a": np.ones(1)})  # writing does not need it
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(
        FileError,
        match=r"needs the safetensors library to be read; write pip install \"\.\[files\]\" in a clone of the repository$",
    ):
        read_tensors(tmp_path / "a.safetensors")


def test_what_cannot_be_written(tmp_path: Path):
    with pytest.raises(FileError, match=r"can hold one array, not 2; write a \.npz or \.safetensors file$"):
        write_tensors(tmp_path / "a.npy", {"a": np.ones(1), "b": np.ones(1)})
    with pytest.raises(FileError, match=r"cannot hold an array named ''; give it another name$"):
        write_tensors(tmp_path / "a.npz", {"": np.ones(1)})
    with pytest.raises(FileError, match=r"'__metadata__', which the format reserves; give it another name$"):
        write_tensors(tmp_path / "a.safetensors", {"__metadata__": np.ones(1)})
    with pytest.raises(DTypeError, match=r"made of booleans, integers or floats, not an array of complex128; convert"):
        write_tensors(tmp_path / "a.npz", {"a": np.ones(1, complex)})
    with pytest.raises(DTypeError, match=r"not an array of float32 called bfloat16; convert it first$"):
        Tensor(np.ones(1, np.float32), "bfloat16")
    assert list(tmp_path.iterdir()) == []


def test_a_strangers_name_cannot_write_to_the_terminal(tmp_path: Path):
    path = tmp_path / "a.npz"
    path.write_bytes(npz({"\x1b[31m" + "x" * 5000 + ".npy": npy(descr="|O")}))
    with pytest.raises(FileError) as caught:
        read_tensors(path)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


# Truncation and noise


def small(ending: str) -> bytes:
    tensors = {"q": np.arange(6, dtype=np.float32).reshape(2, 3), "mask": np.array([True, False])}
    if ending == ".npy":
        return npy()
    if ending == ".npz":
        return npz({f"{n}.npy": _npy_of(a) for n, a in tensors.items()}, zipfile.ZIP_DEFLATED)
    header = {"q": entry([2, 3], [0, 24]), "mask": entry([2], [24, 26], "BOOL")}
    return safetensors(header, tensors["q"].tobytes() + tensors["mask"].tobytes())


def _npy_of(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("ending", [".npz", ".npy", ".safetensors"])
def test_truncated_at_every_byte(tmp_path: Path, ending: str):
    content = small(ending)
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    assert read_tensors(path)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(FileError, match="damaged or cut short"):
            read_tensors(path)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".safetensors"])
def test_noise_raises_nothing_else_and_takes_no_more_memory_than_the_file_explains(tmp_path: Path, ending: str):
    content = small(ending)
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    read_tensors(path)  # imports and caches are not the file's
    random = np.random.default_rng(20)
    outcomes = {"read": 0, "refused": 0}
    tracemalloc.start()
    try:
        for _ in range(1500):
            noisy = np.frombuffer(content, np.uint8).copy()
            where = random.integers(0, len(noisy), random.integers(1, 4))
            noisy[where] = random.integers(0, 256, len(where))
            path.write_bytes(noisy.tobytes())
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                read_tensors(path)
                outcomes["read"] += 1
            except FileError:
                outcomes["refused"] += 1
            # A deflated stream may explain 1,032 times its size; parsing a literal takes a constant.
            explained = len(content) * (1032 if ending == ".npz" else 1) + 2**18
            assert tracemalloc.get_traced_memory()[1] - before < explained
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 0
