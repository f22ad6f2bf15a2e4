// Python's arrays as the kernels take them: views for the duration of a call, checked for what would crash the process
// if it were wrong. Included by the files that know Python.
#pragma once
#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#if defined(__GLIBC__)
#include <cxxabi.h>
#include <unistd.h>
#endif

#include "dlpack.h"
#include "qkv.h"

namespace nb = nanobind;

namespace {

constexpr int64_t kLargest = INT32_MAX;

[[noreturn]] inline void refuse(const char *name, const char *expected) {
  throw nb::value_error((std::string(name) + " must be " + expected + ".").c_str());
}

// A view of an array's memory for the duration of the call, read-only ones and any strides included.
class Buffer {
 public:
  Buffer(nb::handle object, const char *name, bool writable = false) : name_(name) {
    if (object.is_none()) return;
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_RECORDS : PyBUF_RECORDS_RO) != 0) throw nb::python_error();
    held_ = true;
  }
  // A tensor, by the C functions of its library (DLPack 1.3); it must outlive the view. Empty if they cannot give one.
  Buffer(nb::handle object, const char *name, const dlpack::Exchange &exchange) : name_(name) {
    dlpack::Tensor t = {};
    if (exchange.tensor_from(object.ptr(), &t) != 0) {
      PyErr_Clear();
      return;
    }
    int64_t count = 1;
    for (int axis = 0; axis < t.ndim; ++axis) count *= t.shape[axis];
    const char *format = t.lanes == 1 ? dlpack::format(t.code, t.bits) : nullptr;
    if (t.device_type != dlpack::kCpu || t.ndim > dlpack::kMostAxes || !format || (!t.data && count)) return;
    view_.buf = static_cast<char *>(t.data) + t.byte_offset;
    view_.ndim = t.ndim, view_.itemsize = t.bits / 8, view_.format = const_cast<char *>(format);
    view_.shape = own_, view_.strides = own_ + dlpack::kMostAxes;
    Py_ssize_t step = view_.itemsize;
    for (int axis = t.ndim - 1; axis >= 0; --axis) {
      own_[axis] = t.shape[axis];
      own_[dlpack::kMostAxes + axis] = t.strides ? t.strides[axis] * view_.itemsize : step;
      step *= t.shape[axis];
    }
    held_ = true;
  }
  ~Buffer() {
    if (held_ && view_.obj) PyBuffer_Release(&view_);
  }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  explicit operator bool() const { return held_; }
  const char *name() const { return name_; }
  int axes() const { return view_.ndim; }
  int64_t size(int axis) const { return view_.shape[axis < 0 ? axis + view_.ndim : axis]; }
  int64_t stride(int axis) const { return view_.strides[axis < 0 ? axis + view_.ndim : axis]; }
  char *data() const { return held_ ? static_cast<char *>(view_.buf) : nullptr; }
  // The struct code of one element in native byte order; "" for anything longer.
  const char *format() const {
    const char *format = view_.format ? view_.format : "B";
    if (*format == '@' || *format == '=') ++format;
    return format[0] && !format[1] ? format : "";
  }

  // Native byte order and one of the given struct codes.
  void expect(const char *codes, int64_t bytes, const char *expected) const {
    const char code = *format();
    for (; *codes; ++codes)
      if (*codes == code && view_.itemsize == bytes) return;
    refuse(name_, expected);
  }
  void expect_axes(int count) const {
    if (axes() != count) refuse(name_, "an array with the documented number of axes");
  }
  void expect_shape(std::initializer_list<int64_t> trailing) const {
    int axis = -int(trailing.size());
    if (axes() < int(trailing.size())) refuse(name_, "an array with the documented number of axes");
    for (int64_t want : trailing)
      if (size(axis++) != want) refuse(name_, "of the shape that fits the query, the key and the value");
  }
  void expect_contiguous() const {
    if (!contiguous(false)) refuse(name_, "C-contiguous");
  }
  // Whether a result (B…, H, L, E) lies in memory with length before heads; refused if it lies neither so nor so.
  bool length_first() const {
    if (contiguous(false)) return false;
    if (axes() < 3 || !contiguous(true)) refuse(name_, "contiguous, with heads or length first");
    return true;
  }

 private:
  bool contiguous(bool swapped) const {
    int64_t step = view_.itemsize;
    for (int place = axes() - 1; place >= 0; --place) {
      const int axis = !swapped ? place : place == axes() - 2 ? axes() - 3 : place == axes() - 3 ? axes() - 2 : place;
      if (size(axis) > 1 && stride(axis) != step) return false;
      step *= size(axis);
    }
    return true;
  }

  const char *name_;
  Py_buffer view_ = {};
  Py_ssize_t own_[2 * dlpack::kMostAxes];
  bool held_ = false;
};

inline void expect_float(const Buffer &b, int32_t dtype) {
  switch (dtype) {
    case QKV_F16: return b.expect("e", 2, "a float16 array");
    case QKV_BF16: return b.expect("Hh", 2, "a uint16 array of bfloat16 bit patterns");
    case QKV_F32: return b.expect("f", 4, "a float32 array");
    case QKV_F64: return b.expect("d", 8, "a float64 array");
    default: refuse("dtype", "0, 1, 2 or 3");
  }
}

// Where each batch begins, for the product of the leading axes in C order.
inline void batch_offsets(const Buffer &b, int axes, std::vector<int64_t> &offsets) {
  offsets.assign(1, 0);
  for (int axis = 0; axis < axes; ++axis) {
    std::vector<int64_t> wider;
    wider.reserve(offsets.size() * size_t(b.size(axis)));
    for (int64_t base : offsets)
      for (int64_t i = 0; i < b.size(axis); ++i) wider.push_back(base + i * b.stride(axis));
    offsets.swap(wider);
  }
}

// An operand whose last three axes are heads, rows, columns; the offsets of all its batches are stored in `offsets`.
inline qkv_operand operand(const Buffer &b, const Buffer &like, int32_t dtype, int64_t batches, std::vector<int64_t> &offsets) {
  qkv_operand o = {};
  if (!b) return o;
  if (b.axes() != like.axes()) refuse(b.name(), "an array with as many axes as the query");
  for (int axis = 0; axis < b.axes() - 3; ++axis)
    if (b.size(axis) != like.size(axis)) refuse(b.name(), "of the query's batch shape");
  batch_offsets(b, batches > 0 ? b.axes() - 3 : 0, offsets);
  o.base = b.data(), o.batch_offset = offsets.data(), o.dtype = dtype;
  for (int k = 0; k < 3; ++k) o.stride[k] = b.stride(k - 3);
  return o;
}

// Takes Python's lock again. A daemon thread that comes too late for it, because the interpreter is on its way out, is ended
// right there by Python up to 3.13, which unwinds its stack; functions of C++ above do not all let that pass and would
// end the process. So the thread waits here for the end, as it does from 3.14 on.
template <class Take> void take_back(Take take) {
#if defined(__GLIBC__)
  try {
    take();
  } catch (abi::__forced_unwind &) {
    for (;;) pause();
  }
#else
  take();
#endif
}

struct Patience {
  std::chrono::steady_clock::time_point next;
};

// Whether a signal handler (Ctrl-C) raised; looked at every 50 ms.
inline int check_signals(void *context) {
  auto *patience = static_cast<Patience *>(context);
  const auto now = std::chrono::steady_clock::now();
  if (now < patience->next) return 0;
  PyGILState_STATE hold = {};
  take_back([&] { hold = PyGILState_Ensure(); });
  const int raised = PyErr_CheckSignals();
  PyGILState_Release(hold);
  patience->next = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  return raised != 0;
}

}  // namespace
