// What all calls of Python's have in common: the arguments that say what attention is asked for, read from one tuple and
// checked for what would crash the process if it were wrong; and how a kernel is run for Python. Meaning is checked by the
// callers in Python.
#pragma once
#include <cmath>
#include <new>
#include <stdexcept>

#include "buffer.h"
#include "dispatch.h"

namespace {

// The tuple's parts, in the order in which `_arguments` in engines/native.py writes them.
enum Part {
  kQuery, kKey, kValue, kDtype, kScale, kSoftcap, kSlopes, kSink, kOffset, kBias, kBiasDtype, kAllow, kLo, kHi, kOrigin,
  kTileRows, kBlock, kSplit, kSpread, kThreads, kParts
};

class Given {
 public:
  const nb::tuple parts;
  const Buffer query, key, value, slopes, sink, offset, bias, allow, lo, hi, origin;
  int32_t dtype, compute;  // of the operands, and of the states
  const qkv_level *level;
  qkv_call call = {};      // points into the buffers above

  // `whole`: a split has to be whole blocks.
  Given(int level_, const nb::tuple &parts_, bool whole = true)
      : parts(parts_), query(at(kQuery), "query"), key(at(kKey), "key"), value(at(kValue), "value"),
        slopes(at(kSlopes), "slopes"), sink(at(kSink), "sink"), offset(at(kOffset), "offset"), bias(at(kBias), "bias"),
        allow(at(kAllow), "allow"), lo(at(kLo), "lo"), hi(at(kHi), "hi"), origin(at(kOrigin), "origin"),
        dtype(nb::cast<int32_t>(at(kDtype))), compute(dtype == QKV_F64 ? QKV_F64 : QKV_F32) {
    const qkv_level *found;
    if (level_ < 0 || level_ >= qkv_levels(&found)) refuse("level", "an index into levels()");
    level = found + level_;
    read_sizes();
    call.query = place(query, dtype), call.key = place(key, dtype), call.value = place(value, dtype);
    read_scores();
    read_ranges();
    read_plan(whole);
  }
  Given(const Given &) = delete;

  // Any other operand with the query's batch axes.
  qkv_operand place(const Buffer &b, int32_t type) {
    std::vector<int64_t> &offsets = batches_[placed_ < kMost ? placed_++ : kMost - 1];
    return operand(b, query, type, call.N, offsets);
  }

 private:
  static constexpr int kMost = 12;
  std::vector<int64_t> batches_[kMost];
  int placed_ = 0;

  nb::handle at(Part part) const {
    if (parts.size() != kParts) refuse("call", "a tuple of all parts of a call");
    return nb::handle(parts[size_t(part)].ptr());
  }

  void read_sizes() {
    for (const Buffer *b : {&query, &key, &value}) {
      if (!*b || b->axes() < 3) refuse(b->name(), "an array with at least three axes");
      expect_float(*b, dtype);
    }
    call.N = 1;
    for (int axis = 0; axis < query.axes() - 3; ++axis) call.N *= query.size(axis);
    call.H = query.size(-3), call.L = query.size(-2), call.D = query.size(-1);
    call.G = key.size(-3), call.S = key.size(-2), call.E = value.size(-1);
    if (call.H < 1 || call.G < 1 || call.D < 1 || call.E < 1) refuse("each of H, G, D and E", "at least 1");
    if (call.H % call.G) refuse("H", "a multiple of G");
    for (int64_t size : {call.N, call.H, call.L, call.S, call.D, call.E})
      if (size > kLargest) refuse("each axis", "shorter than 2**31");
    key.expect_shape({call.G, call.S, call.D});
    value.expect_shape({call.G, call.S, call.E});
  }

  void read_scores() {
    call.scale = nb::cast<double>(at(kScale)), call.softcap = nb::cast<double>(at(kSoftcap));
    if (!std::isfinite(call.scale)) refuse("scale", "finite");
    if (!(call.softcap >= 0 && std::isfinite(call.softcap))) refuse("softcap", "finite and not negative");
    for (const Buffer *b : {&slopes, &sink}) {
      if (!*b) continue;
      b->expect("d", 8, "a float64 array");
      b->expect_axes(1), b->expect_shape({call.H}), b->expect_contiguous();
    }
    call.slopes = reinterpret_cast<const double *>(slopes.data());
    call.sink = reinterpret_cast<const double *>(sink.data());
    if (!offset) refuse("offset", "an int64 array");
    offset.expect("lq", 8, "an int64 array");
    offset.expect_axes(1), offset.expect_shape({call.N}), offset.expect_contiguous();
    call.offset = reinterpret_cast<const int64_t *>(offset.data());
    for (int64_t n = 0; n < call.N; ++n)
      if (call.offset[n] > INT64_MAX / 4 || call.offset[n] < INT64_MIN / 4) refuse("offset", "within 2**61 of zero");
    const int32_t bias_dtype = nb::cast<int32_t>(at(kBiasDtype));
    if (bias) {
      if (bias_dtype != dtype && bias_dtype != QKV_F32) refuse("bias", "of the query's dtype or float32");
      expect_float(bias, bias_dtype);
      bias.expect_shape({call.H, call.L, call.S});
    }
    call.bias = place(bias, bias_dtype);
    if (allow) {
      allow.expect("?Bb", 1, "a bool or uint8 array");
      allow.expect_shape({call.H, call.L, call.S});
    }
    call.allow = place(allow, 0);
  }

  void read_ranges() {
    if (!lo || !hi || lo.axes() != 3 || hi.axes() != 3) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
    call.K = lo.size(2);
    for (const Buffer *b : {&lo, &hi}) {
      b->expect("il", 4, "an int32 array");
      b->expect_shape({lo.size(0), call.L, call.K}), b->expect_contiguous();
    }
    if (lo.size(0) != 1 && lo.size(0) != call.N) refuse("lo and hi", "int32 arrays (1 or N, L, K)");
    call.lo = reinterpret_cast<const int32_t *>(lo.data()), call.hi = reinterpret_cast<const int32_t *>(hi.data());
    call.range_batch = lo.size(0) == 1 ? 0 : call.L * call.K;
    if (!origin) return;
    origin.expect("il", 4, "an int32 array");
    origin.expect_axes(2), origin.expect_shape({call.L}), origin.expect_contiguous();
    if (origin.size(0) != 1 && origin.size(0) != call.N) refuse("origin", "an int32 array (1 or N, L)");
    call.origin = reinterpret_cast<const int32_t *>(origin.data());
    call.origin_batch = origin.size(0) == 1 ? 0 : call.L;
  }

  void read_plan(bool whole) {
    call.tile_rows = nb::cast<int64_t>(at(kTileRows)), call.block = nb::cast<int64_t>(at(kBlock));
    call.split = nb::cast<int64_t>(at(kSplit)), call.threads = nb::cast<int64_t>(at(kThreads));
    call.spread = nb::cast<bool>(at(kSpread));
    if (call.tile_rows < 1 || call.block < 1 || call.split < 1 || call.threads < 1)
      refuse("each of tile_rows, block, split and threads", "at least 1");
    if (whole && call.split % call.block) refuse("split", "a multiple of block");
    if (call.block > kLargest || call.split > kLargest) refuse("block and split", "less than 2**31");
  }
};

// A contiguous result of that shape, or null where none is wanted.
inline char *result_of(const Buffer &b, int32_t type, std::initializer_list<int64_t> shape) {
  if (!b) return nullptr;
  expect_float(b, type);
  b.expect_axes(int(shape.size())), b.expect_shape(shape), b.expect_contiguous();
  return b.data();
}

// The same for whole numbers.
inline int64_t *whole_numbers(const Buffer &b, std::initializer_list<int64_t> shape) {
  if (!b) return nullptr;
  b.expect("lq", 8, "an int64 array");
  b.expect_axes(int(shape.size())), b.expect_shape(shape), b.expect_contiguous();
  return reinterpret_cast<int64_t *>(b.data());
}

// The lists of a row's largest weights, (N, H, L, count) each, or nothing.
inline void read_top(const Buffer &key, const Buffer &weight, int32_t type, const qkv_call &call, int64_t &count,
                     int64_t *&keys, void *&weights) {
  if (!key) return;
  count = key.axes() ? key.size(-1) : 0;
  if (count < 1) refuse("top_key", "an array with room for a key a row");
  if (!weight) refuse("top_weight", "an array");
  keys = whole_numbers(key, {call.N, call.H, call.L, count});
  weights = result_of(weight, type, {call.N, call.H, call.L, count});
}

// Runs a kernel, asking for signals between tiles; `brief`: so short that nobody, other threads of Python included, minds.
template <class Run> void carry_out(qkv_call &call, Run run, bool brief = false) {
  Patience patience = {};
  int code;
  if (brief) {
    code = run();
  } else {
    patience.next = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    call.poll = check_signals, call.poll_context = &patience;
    PyThreadState *const thread = PyEval_SaveThread();
    code = run();
    take_back([&] { PyEval_RestoreThread(thread); });
  }
  if (code == 1) {
    if (PyErr_Occurred()) throw nb::python_error();
    throw std::runtime_error("the process forked while this call was at work; call again in the child");
  }
  if (code == 2) throw std::bad_alloc();
}

}  // namespace
