// The part of the DLPack 1.3 interface that reads a tensor's memory without a copy and without a Python call. The layout
// is the standard's (https://dmlc.github.io/dlpack/latest/c_api.html); a library offers a table of C functions in a
// capsule on its array type, `__dlpack_c_exchange_api__`.
#pragma once
#include <Python.h>

#include <cstdint>

namespace dlpack {

constexpr int kMostAxes = 8;
constexpr int32_t kCpu = 1;

struct Tensor {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;  // strides in elements; null: C-contiguous
  uint64_t byte_offset;
};

struct Exchange {
  uint32_t major, minor;
  Exchange *previous;
  int (*allocate)(Tensor *, void **, void *, void (*)(void *, const char *, const char *));
  int (*managed_from)(void *, void **);
  int (*managed_to)(void *, void **);
  int (*tensor_from)(void *object, Tensor *out);
};

// The table in a capsule, or null where it is none that is understood here.
inline const Exchange *exchange(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return nullptr;
  const auto *table = static_cast<const Exchange *>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  while (table && table->major != 1) table = table->previous;
  return table && table->tensor_from ? table : nullptr;
}

// The struct code of a float type or of booleans as in buffers; bfloat16 as its 16-bit pattern. Null: none of these.
inline const char *format(uint8_t code, uint8_t bits) {
  if (code == 4 && bits == 16) return "H";
  if (code == 6 && bits == 8) return "?";
  if (code != 2) return nullptr;
  return bits == 16 ? "e" : bits == 32 ? "f" : bits == 64 ? "d" : nullptr;
}

}  // namespace dlpack
